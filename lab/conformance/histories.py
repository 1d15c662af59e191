"""How histories are made up: by Hypothesis, which also makes one that disagrees simpler.

A history is one draw of bytes, six for each step, since a draw for each choice would take longer than the history
itself. Zeros stand for the first of all choices, so that a simpler draw is a simpler history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lab.conformance import steps as s

T = TypeVar("T")

STEPS = 12
"""Draws for each history."""

_BYTES = 6


class Dice:
    """Choices, one after the other, out of one number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def pick(self, options: Sequence[T]) -> T:
        self._number, place = divmod(self._number, len(options))
        return options[place]


QUEUES = ("q", "q", "q", "r")
WORKERS = ("w1", "w2")
PLACES: tuple[s.Places, ...] = (
    *((0,), (0, 1, 2, 3, 4, 5), (1,), (0, 1), (2,), (1, 3), (3,), (5,), (8,)),
    # The oldest claims first: of a row that was claimed again, the stale one.
    *((9, 8, 7, 6, 5, 4, 3, 2, 1, 0), (5, 4, 3, 2, 1, 0)),
)
LIMITS = (3, 3, 2, 1)
BOTH = (False, True)
KEYS: tuple[tuple[str | None, ...], ...] = (
    *((None,), ("a",), ("a", "a"), ("b",), (None, "a", "b", "a"), ("b", "b", "b")),
)
ACTIONS = (
    *[("done",)] * 4,
    *(("retry",), ("defer",), ("dead",), ("release",)),
    *(("done", "retry"), ("done", "done", "dead"), ("defer", "done"), ("release", "done"), ("expand",)),
)
BREAKS = ("failed", "failed", "delivered", "probe", "close", "reopen")
RECOVERIES = ("auto", "auto", "manual", "verify")


def _enqueue(dice: Dice) -> s.Step:
    return s.Enqueue(
        keys=dice.pick(KEYS),
        queue=dice.pick(QUEUES),
        delay=dice.pick((0, 0, 0, 1, 5)),
        recovery=dice.pick(RECOVERIES),
        dedupe=dice.pick((None, None, None, "x", "y")),
        payload=dice.pick((0, 0, 0, 1)),
    )


def _claim(dice: Dice) -> s.Step:
    return s.Claim(
        worker=dice.pick(WORKERS),
        queue=dice.pick(("q", "q", None, "r")),
        batch=dice.pick((10, 5, 1, 2, 3)),
        lease=dice.pick((1, 3)),
        limit=dice.pick(LIMITS),
        longest_run=dice.pick((None, None, 1, 2)),
        park_behind_leased=dice.pick(BOTH),
    )


def _claim_suspects(dice: Dice) -> s.Step:
    return s.ClaimSuspects(
        worker=dice.pick(WORKERS),
        queue=dice.pick(QUEUES),
        batch=dice.pick((1, 1, 3)),
        limit=dice.pick(LIMITS),
        max_reclaims=dice.pick((9, 9, 1)),
        spare_attempts=dice.pick((0, 0, 1)),
    )


KINDS: tuple[tuple[int, Callable[[Dice], s.Step]], ...] = (
    (6, _enqueue),
    (14, _claim),
    (5, _claim_suspects),
    (14, lambda dice: s.Finalize(dice.pick(PLACES), dice.pick(ACTIONS))),
    (3, lambda dice: s.Heartbeat(dice.pick(PLACES), dice.pick((1, 3)))),
    (2, lambda dice: s.Release(dice.pick(PLACES))),
    (10, lambda dice: s.Pass(dice.pick((2, 1, 4, 10)))),
    (3, lambda dice: s.Reap(dice.pick(QUEUES), dice.pick((10, 1)), dice.pick(LIMITS))),
    (2, lambda dice: s.Retry(dice.pick(PLACES))),
    (2, lambda dice: s.Skip(dice.pick(PLACES))),
    (2, lambda dice: s.Pause(dice.pick(QUEUES), dice.pick((True, False, False)))),
    (1, lambda dice: s.Change(dice.pick(QUEUES), dice.pick((None, 2, 3)), dice.pick(BOTH))),
    (1, lambda dice: s.Purge(dice.pick((0, 2)), dice.pick((10, 1)))),
    (1, lambda _: s.PromoteStranded()),
    (1, lambda _: s.Stats()),
    (2, lambda dice: s.Accept(dice.pick(("m", "n")), dice.pick((None, 1, 2)), dice.pick((None, None, 0, 1)))),
    (1, lambda dice: s.AcceptNumber(dice.pick(("k", "l")), dice.pick((1, 2, 3, 4)), dice.pick(BOTH))),
    (1, lambda dice: s.Admit(dice.pick(("f", "g")), dice.pick((1, 2, 3)))),
    (2, lambda dice: s.Break(dice.pick(QUEUES), dice.pick(BREAKS))),
    (1, lambda dice: s.Lose(dice.pick((0, 1, 2, 3)))),
)
_WEIGHTED = tuple(make for weight, make in KINDS for _ in range(weight))

_TRANSACTIONS: tuple[Callable[[Dice], s.Step], ...] = (
    *[lambda _: s.Begin()] * 2,
    lambda dice: s.End(commits=dice.pick((True, True, False))),
)


def history_of(drawn: bytes) -> s.History:
    """Return the history that these bytes stand for: the first one says whether a second session takes part."""
    is_alone = not drawn or drawn[0] % 2 == 0
    numbers = [int.from_bytes(drawn[at : at + _BYTES], "little") for at in range(1, len(drawn), _BYTES)]
    history: list[tuple[int, s.Step]] = [] if is_alone else [(1, s.Begin())]
    for place, number in enumerate(numbers):
        dice = Dice(number)
        session = 0 if is_alone or place < _FIRST else dice.pick((0, 1))
        history += [(session, step) for step in _steps(dice, is_alone, place)]
    return tuple(history)


_FIRST = 2
"""Messages come first: where there is nothing, nothing happens."""


def _steps(dice: Dice, is_alone: bool, place: int) -> tuple[s.Step, ...]:
    if place < _FIRST:
        return (_enqueue(dice),)
    kinds = _WEIGHTED if is_alone else dice.pick((_WEIGHTED, _WEIGHTED, _WEIGHTED, _TRANSACTIONS))
    if kinds is _WEIGHTED and dice.pick(range(10)) == 0:
        # Leases end, and somebody takes over: what is done under the older ones from now on is stale.
        return s.Pass(4), s.ClaimSuspects("w2", dice.pick(QUEUES), 3, 3, 9, 0)
    return (dice.pick(kinds)(dice),)


HISTORIES: SearchStrategy[s.History] = st.binary(min_size=1 + STEPS * _BYTES, max_size=1 + STEPS * _BYTES).map(
    history_of
)
