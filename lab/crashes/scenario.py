"""What a scenario is: rows that stand there, an operation on them, and what its repeat must come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fencepost.core.operation import Operation
from lab.crashes.world import World

Make = Callable[[], Operation[Any]]
Prepare = Callable[[World], Make]


class Repeat(Enum):
    """What a repeat must come to where the first try was committed and its answer lost."""

    SAME = "the same answer, and the same rows as after one try"
    STATE = "the same rows as after one try"
    ONCE = "it is not repeated: who asked looks whether its transaction is there"
    ANEW = "it takes what is left: the rows of the first try are another worker's once their lease is over"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One operation on rows of its own.

    Args:
        operation: its ``module.name``.
        name: of the scenario.
        prepare: sets the rows up, and returns what makes the operation anew for each try.
        repeat: what a repeat must come to.
        alone: each statement is a transaction of its own, as on a worker's link.
        operator: it may change dead and failed rows.
        removes: it may delete done rows.
        fenced: a holder's write, which changes nothing once another worker took over.
        apart: it changes tables, in a schema of their own.
        strands: somebody has deleted rows by hand, so that the other worker looks for what that stranded.
    """

    operation: str
    name: str
    prepare: Prepare
    repeat: Repeat
    alone: bool = False
    operator: bool = False
    removes: bool = False
    fenced: bool = False
    apart: bool = False
    strands: bool = False

    def __str__(self) -> str:
        return f"{self.operation} ({self.name}{', each statement alone' if self.alone else ''})"


class Scenarios:
    """Collects the scenarios of one file."""

    def __init__(self) -> None:
        self.found: list[Scenario] = []

    def __call__(self, operation: str, repeat: Repeat, **options: bool) -> Callable[[Prepare], Prepare]:
        """Make a scenario of a function; with ``both``, also one in which each statement is alone."""
        both = options.pop("both", False)

        def decorate(prepare: Prepare) -> Prepare:
            name = prepare.__name__.replace("_", " ").strip()
            self.found.append(Scenario(operation, name, prepare, repeat, **options))
            if both:
                self.found.append(Scenario(operation, name, prepare, repeat, **(options | {"alone": True})))
            return prepare

        return decorate
