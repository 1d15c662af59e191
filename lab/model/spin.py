"""Compile the model, run it, and read what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.model import table, variants
from lab.model.config import Space

HERE = Path(__file__).parent
DEEPEST = 20_000_000
"""Steps of spin on the longest path, past which a run counts as incomplete."""

SOUGHT = 100
"""As in outbox.pml: what is added to an event's number."""

SHORT_PATHS = (60, 90, 130, 200, 400, 100_000)
"""Depths at which a counterexample is looked for, one after another: the shorter, the easier to read."""


class Incomplete(Exception):
    """Spin ended without having looked at everything."""


@dataclass(frozen=True, slots=True)
class Found:
    """What spin found.

    Args:
        violated: the property that does not hold, None where all do.
        states: how many it looked at.
        depth: of the longest path, in steps of spin.
        memory: in MiB.
        seconds: how long it took.
        trace: how to get there, if asked for.
    """

    violated: str | None
    states: int
    depth: int
    memory: float
    seconds: float
    trace: tuple[str, ...] = ()


class Model:
    """A compiled model.

    Args:
        name: ``outbox`` or ``inbox``.
        directory: where to work; what is there of an earlier run is overwritten.
        spin: the program.
        optimize: whether gcc should; that takes longer than it saves in short runs.
        memory: MiB past which a run ends as incomplete.
    """

    def __init__(self, name: str, directory: Path, *, spin: str, optimize: bool, memory: int = 6_000) -> None:
        self._directory = directory / name
        self._directory.mkdir(parents=True, exist_ok=True)
        for file in HERE.glob("*.pml"):
            shutil.copy(file, self._directory)
        (self._directory / "table.pml").write_text(table.promela())
        (self._directory / "variants.pml").write_text(variants.promela())
        self._call([spin, "-a", f"{name}.pml"])
        # Safety only; no state is left out (no partial-order reduction, no bit-state hashing).
        options = ["-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", f"-DMEMLIM={memory}", "-O2" if optimize else "-O0"]
        self._call(["gcc", "-w", *options, "-o", "pan", "pan.c"])

    def explore(
        self, space: Space, *, variant: str | None = None, depth: int = 100_000, hash_bits: int = 18
    ) -> Found:
        """Look at every state, or until a property does not hold.

        Raises:
            Incomplete: a limit of depth or memory came first.
        """
        output = self._run(space, _number(variant), f"-m{depth}", f"-w{hash_bits}")
        found = _read(output)
        is_cut_off = "max search depth too small" in output or "Search not completed" in output
        if found is None or (is_cut_off and found.violated is None):
            raise Incomplete(output[-2_000:])
        return found

    def happens(self, space: Space, event: str) -> bool:
        """Tell whether an event ever happens there: what holds where nothing happens would say little."""
        found = _read(self._run(space, SOUGHT + table.number_of(event), "-m100000", "-w18"))
        return found is not None and found.violated == "it_happens"

    def counterexample(self, space: Space, variant: str) -> Found:
        """Explore a variant along short paths first, and tell how its violation is reached.

        Raises:
            Incomplete: there is none up to the greatest depth.
        """
        for depth in SHORT_PATHS:
            found = _read(self._run(space, _number(variant), f"-m{depth}", "-w20"))
            if found is not None and found.violated is not None:
                trace = tuple(_told(self._run(space, _number(variant), "-r")))
                return Found(found.violated, found.states, found.depth, found.memory, found.seconds, trace)
        raise Incomplete(f"no counterexample within {SHORT_PATHS[-1]} steps of spin")

    def _run(self, space: Space, number: int, *options: str) -> str:
        environment = {**os.environ, "FENCEPOST_MODEL": space.environment(number)}
        return self._call(["./pan", *options], environment, is_free_to_fail=True)

    def _call(
        self, command: list[str], environment: dict[str, str] | None = None, *, is_free_to_fail: bool = False
    ) -> str:
        done = subprocess.run(
            command, cwd=self._directory, env=environment, text=True, errors="replace", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if done.returncode and not is_free_to_fail:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4_000:]}")
        return done.stdout


def _number(variant: str | None) -> int:
    return 0 if variant is None else variants.number_of(variant)


_VIOLATED = re.compile(r"assertion violated \W*(\w+)\|\|")


def _read(output: str) -> Found | None:
    """Return what a run's last lines say, None where it did not get there."""
    states = re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", output)
    memory = re.search(r"([\d.]+)\s+total actual memory", output)
    seconds = re.search(r"elapsed time ([\d.e+-]+) seconds", output)
    if not states or not depth:
        return None
    violated = _VIOLATED.search(output)
    if int(depth[2]) and not violated:
        return None
    return Found(
        violated[1] if violated else None,
        int(states[1]),
        int(depth[1]),
        float(memory[1]) if memory else 0.0,
        float(seconds[1]) if seconds else 0.0,
    )


def _told(replayed: str) -> Iterator[str]:
    """Pick the model's own lines out of a replay."""
    for line in replayed.splitlines():
        mark = line.find("@ ")
        if mark >= 0:
            yield re.sub(r"\{(\d+)\}", lambda found: _members(int(found[1])), table.told(line[mark + 2 :]))


def _members(mask: int) -> str:
    return "{" + ", ".join(str(each) for each in range(3) if mask >> each & 1) + "}"
