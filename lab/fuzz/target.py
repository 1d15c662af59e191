"""What a target of the fuzzer is: it makes a case from chance, and judges cases."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, TypeVar

from lab.fuzz.places import Places

T = TypeVar("T")

Case = Any
"""Plain data, so that it can be shown and made smaller."""


class Verdict(StrEnum):
    """What became of a case."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict, and why: the kind of a refusal, or what is wrong. Text behind the first colon may vary."""

    verdict: Verdict
    why: str = ""
    is_of_case: bool = False
    """The case itself says what must become of it: made smaller, it might not any more."""

    @property
    def kind(self) -> str:
        """What stays the same while a failing case is made smaller."""
        return self.why.partition(":")[0]


ACCEPTED = Result(Verdict.ACCEPTED)


def refused(error: BaseException | str) -> Result:
    """Return the verdict on a case that was refused as it should be."""
    return Result(Verdict.REFUSED, error if isinstance(error, str) else type(error).__name__)


def failed(kind: str, detail: object = "") -> Result:
    """Return the verdict on a case that showed a fault."""
    return Result(Verdict.FAILED, f"{kind}: {detail}"[:2_000])


def against_case(kind: str, detail: object = "") -> Result:
    """Return the verdict on a case that ended otherwise than it says itself."""
    return Result(Verdict.FAILED, f"{kind}: {detail}"[:2_000], is_of_case=True)


class Target(ABC):
    """One kind of input.

    Attributes:
        name: on the command line.
        share: its part of all cases, beside those of the others.
        batch: cases that are judged together at most.
        both: whether some cases must be accepted and some refused, or the oracle is taken for blind.
    """

    name: ClassVar[str]
    share: ClassVar[float] = 1.0
    batch: ClassVar[int] = 100
    both: ClassVar[bool] = True

    @abstractmethod
    def case(self, chance: Random) -> Case:
        """Return the case of this chance: the same for the same seed."""

    @abstractmethod
    def judged(self, cases: Sequence[Case]) -> list[Result]:
        """Return a verdict on each case."""

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        """Have at hand what judging needs, such as a database."""
        yield


class OneByOne(Target):
    """A target whose cases have nothing to do with one another."""

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        return [self._safely(case) for case in cases]

    def _safely(self, case: Case) -> Result:
        try:
            return self.one(case)
        except Exception as error:  # noqa: BLE001 - whatever gets here is the finding
            return unexpected(error)

    @abstractmethod
    def one(self, case: Case) -> Result:
        """Return the verdict on one case; what it raises counts as failed."""


def unexpected(error: BaseException) -> Result:
    """Return the verdict on an error that nobody promised."""
    found = error
    while found.__cause__ is not None or found.__context__ is not None:
        found = found.__cause__ or found.__context__ or found
    where = found.__traceback__
    place = ""
    while where is not None:
        place = f"{where.tb_frame.f_code.co_filename.rpartition('/')[2]}:{where.tb_lineno}"
        where = where.tb_next
    return failed(f"unexpected {type(error).__name__}", f"{error!s:.500} at {place}")


class Loop:
    """An event loop that lives as long as its target, for what is async."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the loop until the end of the block."""
        with asyncio.Runner() as self._runner:
            yield

    def run(self, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end."""
        if self._runner is None:
            raise RuntimeError("the target is not open")
        return self._runner.run(made())
