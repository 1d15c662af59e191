"""Tries mutants: a copy of the sources with one sabotage in it, and the tests that should notice it.

All of them share one PostgreSQL server. A test that fails must pass without the sabotage as well, or its failure
says nothing: that is looked at in one run at the end.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from py_compile import PycInvalidationMode

from lab.mutants.mutant import Mutant, mutated
from lab.mutants.warm import ROOT, Warm

SERVER = "FENCEPOST_TEST_PG18"
"""The variable by which the tests find a PostgreSQL 18 that runs already."""

PATIENCE = 60.0
"""Seconds that one test may take; past that it hangs, or the machine is busy with something else."""

HARD_LIMIT = 20.0
"""How many times that the tests of a mutant may take, before they are ended."""

MEASURES_TIME = "tests/runtime/"
"""Tests that fail now and then on a busy machine: what they notice, they must notice twice."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - (.*))?$", re.MULTILINE)
_HUNG = "from pytest-timeout"
_NONSENSE = re.compile(
    r"SyntaxError|UndefinedColumn|UndefinedTable|UndefinedFunction|AmbiguousColumn|DatatypeMismatch|GroupingError"
    r"|IndeterminateDatatype|NameError|UnboundLocalError|ImportError|FeatureNotSupported"
)
"""What says that a sabotage is no SQL or no Python: everybody would notice that."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Args:
        state: ``killed``, ``survived``, ``nonsense`` where the sabotage does not even run, ``hung`` where a test
            came to no end, which is no verdict, or ``doubtful`` where the same test passed the next time.
        by: the test that noticed it, or that hung.
        why: that test's error, in one line.
    """

    mutant: Mutant
    state: str
    by: str = ""
    why: str = ""
    seconds: float = 0.0


class Copy:
    """A copy of the sources, in which one file at a time is sabotaged.

    Args:
        directory: for the copy.
        patience: seconds that one test may take.
    """

    def __init__(self, directory: Path, patience: float = PATIENCE) -> None:
        self.source = directory / "src"
        self._patience = patience
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        # By content, not by time: a sabotage often has the length and the second of what it replaces.
        compileall.compile_dir(self.source, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        mine = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = mine | {
            "PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis"),
            "COLUMNS": "400",
        }
        self._pytest = Warm([self.source, ROOT], environment, directory / "output")

    def give_up(self) -> None:
        """End the tests under way, and let no others begin."""
        self._pytest.give_up()

    def close(self) -> None:
        """End what runs the tests."""
        self._pytest.close()

    def try_out(self, mutant: Mutant, server: Path, first: str = "") -> Verdict:
        """Run the tests of a mutant until one fails.

        Args:
            first: the test to begin with, which noticed it before.
        """
        file = self.source / "fencepost" / mutant.file
        began = time.monotonic()
        original = file.read_text(encoding="utf-8")
        file.write_text(mutated(mutant, self.source), encoding="utf-8")
        try:
            found = self._verdict(mutant, [first], server) if first else None
            if found is None or found.state != "killed":  # as where that test has another name now
                found = self._verdict(mutant, mutant.selection, server)
            if found.state == "killed" and found.by.startswith(MEASURES_TIME):
                again = self._verdict(mutant, [found.by], server)
                found = found if again.state == "killed" else replace(found, state="doubtful")
        finally:
            file.write_text(original, encoding="utf-8")
        return replace(found, seconds=time.monotonic() - began)

    def _verdict(self, mutant: Mutant, tests: Sequence[str], server: Path) -> Verdict:
        return verdict_of(mutant, *self.run_tests(["-x", *tests], server))

    def unsound(self, tests: Iterable[str], server: Path) -> str:
        """Return what pytest says about these tests without any sabotage; nothing where all of them pass."""
        chosen = sorted(set(tests))
        if not chosen:
            return ""
        code, output = self.run_tests(chosen, server, limit=max(60, len(chosen)) * self._patience)
        return "" if code == 0 else output[-4000:]

    def run_tests(
        self, arguments: Sequence[str], server: Path, limit: float | None = None
    ) -> tuple[int | None, str]:
        """Run pytest on this copy; return its exit code, None where it had to be ended, and what it said."""
        command = ["-q", "--tb=line", "-p", "no:cacheprovider", "-o", f"timeout={self._patience:g}"]
        # One major version, and no pooler: the sabotage is the same for all of them.
        command += ["-k", "not pg15 and not pooled", *arguments]
        return self._pytest.run(command, {SERVER: str(server)}, limit or HARD_LIMIT * self._patience)


def verdict_of(mutant: Mutant, code: int | None, output: str) -> Verdict:
    """Read what pytest said; ``code`` is None where it had to be ended."""
    if code is None:
        return Verdict(mutant, "hung", why="its tests came to no end")
    if code == 0:
        return Verdict(mutant, "survived")
    found = _FAILED.search(output)
    if code != 1 or found is None:
        return Verdict(mutant, "nonsense", why=output.strip().splitlines()[-1] if output.strip() else "")
    by, why = found[1], found[2] or ""
    if _HUNG in why:
        return Verdict(mutant, "hung", by, why)
    return Verdict(mutant, "nonsense" if _NONSENSE.search(why) else "killed", by, why)
