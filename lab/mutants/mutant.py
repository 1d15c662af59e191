"""What a mutant is: one small sabotage of one file, and the tests that should notice it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

SQL = "store/sql/postgresql"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One sabotage.

    Args:
        name: of the mutant, unique.
        what: the sabotage in one line.
        file: below ``src/fencepost``.
        before: the exact text, which occurs there exactly once; or ``places`` times, since some rules are written
            twice in one statement, once to find rows and once more behind their locks.
        after: what stands there instead.
        tests: files below ``tests``, or a ``file::test``, separated by blanks, until the first notices it.
        equivalent: why no test can notice it, where that is so; such a mutant is expected to survive.
    """

    name: str
    what: str
    file: str
    before: str
    after: str
    tests: str = ""
    equivalent: str = ""
    places: int = 1

    @property
    def test_files(self) -> list[str]:
        return [f"tests/{name.partition('::')[0]}.py" for name in self.tests.split()]

    @property
    def selection(self) -> list[str]:
        """What pytest is asked to run."""
        return [f"tests/{file}.py{colons}{test}" for file, colons, test in map(_divided, self.tests.split())]


def _divided(name: str) -> tuple[str, str, str]:
    return name.partition("::")


class Misplaced(Exception):
    """The text of a mutant does not occur in its file as often as it says."""


def mutated(mutant: Mutant, source: Path) -> str:
    """Return the text of the mutant's file with the sabotage in it.

    Raises:
        Misplaced: its text does not occur as often as it says.
    """
    text = (source / "fencepost" / mutant.file).read_text(encoding="utf-8")
    if (count := text.count(mutant.before)) != mutant.places:
        raise Misplaced(f"{mutant.name}: its text occurs {count} times in {mutant.file}")
    return text.replace(mutant.before, mutant.after)


def of(file: str, tests: str, *mutants: tuple[str, str, str, str], places: int = 1) -> list[Mutant]:
    """Make the mutants of one file, each ``(name, what, before, after)``, that the same tests should notice."""
    return [Mutant(name, what, file, before, after, tests, places=places) for name, what, before, after in mutants]


def marked(mutants: Iterable[Mutant], equivalent: dict[str, str]) -> list[Mutant]:
    """Add the reasons why some of them cannot be noticed."""
    return [replace(each, equivalent=equivalent.get(each.name, "")) for each in mutants]
