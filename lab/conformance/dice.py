"""Choices, one after the other, out of one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


_MASK = 2**64 - 1


def _stirred(number: int) -> int:
    """Return another number of 64 bits for each, zero for zero: what is drawn has far more zeros than its share.

    (The last steps of splitmix64.)
    """
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


class Dice:
    """A number that is used up by choices."""

    def __init__(self, number: int) -> None:
        self._number = _stirred(number)

    def pick(self, options: Sequence[T]) -> T:
        self._number, place = divmod(self._number, len(options))
        return options[place]
