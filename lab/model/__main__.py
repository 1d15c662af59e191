"""Explore the model: fencepost as it is must hold, and each sabotage must be rejected by its property."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from lab import ending
from lab.model.config import FULL, LARGE, REDUCED, Space
from lab.model.spin import DEEPEST, Found, Incomplete, Model
from lab.model.variants import VARIANTS


class Explorer:
    """Compiles what is needed, once; says what it sees, and remembers it.

    Args:
        directory: where to work.
        is_full: optimize, and have room for many states.
        memory: MiB for one run.
        is_quiet: print nothing but the last answer.
    """

    def __init__(self, directory: Path, *, is_full: bool, memory: int, is_quiet: bool) -> None:
        self._directory, self._is_full, self._memory, self._is_quiet = directory, is_full, memory, is_quiet
        self._models: dict[str, Model] = {}
        self.seen: list[dict[str, object]] = []
        self.faults = 0

    def model(self, name: str) -> Model:
        """Return a compiled model."""
        if name not in self._models:
            spin = shutil.which("spin")
            if spin is None:
                sys.exit("spin is not installed: run scripts/install_servers.sh, or apt-get install spin")
            began = time.monotonic()
            self._models[name] = Model(
                name, self._directory, spin=spin, optimize=self._is_full, memory=self._memory
            )
            self.say(f"compiled {name}.pml in {time.monotonic() - began:.1f} s")
        return self._models[name]

    def say(self, line: str) -> None:
        if not self._is_quiet:
            print(line, flush=True)

    def explore(self, name: str, space: Space) -> None:
        """Look at every state of fencepost as it is."""
        model = self.model(space.model)
        if self._is_full:
            self.say(f"exploring: {name}")
        depth, bits = (DEEPEST, 26) if self._is_full else (100_000, 20)
        try:
            found = model.explore(space, depth=depth, hash_bits=bits)
        except Incomplete as incomplete:
            self._judge(False, f"{name}: not complete\n{incomplete}", {"space": name, "complete": False})
            return
        what = (
            f"{found.states:,} states, depth {found.depth:,}, {found.memory:,.0f} MiB, {found.seconds:.1f} s"
            if found.violated is None
            else f"violates {found.violated}"
        )
        self._judge(found.violated is None, f"{name}: {what}", {"space": name, "complete": True} | _figures(found))

    def reject(self, name: str, *, is_told: bool = False) -> None:
        """See that a sabotage is rejected, by the property that it was made against."""
        variant = VARIANTS[name]
        model = self.model(variant.space.model)
        try:
            found = (
                model.counterexample(variant.space, name)
                if is_told
                else model.explore(variant.space, variant=name)
            )
        except Incomplete as incomplete:
            self._judge(False, f"{name}: {incomplete}", {"variant": name})
            return
        is_right = found.violated == variant.violates
        said = f"rejected by {found.violated}" if found.violated else "NOT rejected"
        if found.violated and not is_right:
            said += f", and not by {variant.violates}"
        self._judge(is_right, f"{name} ({variant.what}): {said}", {"variant": name} | _figures(found))
        if found.trace:
            self.say("    (after =: the messages, each with its status and its attempts/token)")
        for line in _numbered(found.trace):
            self.say(line)

    def _judge(self, holds: bool, line: str, figures: dict[str, object]) -> None:
        self.faults += not holds
        self.seen.append({**figures, "holds": holds})
        self.say(("ok    " if holds else "FAULT ") + line)


def _figures(found: Found) -> dict[str, object]:
    return asdict(found)


def _numbered(trace: Sequence[str]) -> Iterator[str]:
    """Number the steps; indented: what happens to messages; then their status, attempts/token."""
    step = 0
    rows = ""
    for line in trace:
        text = line.strip()
        if not line.startswith(" "):
            step += 1
            yield f"    {step:3} {text}"
        elif not text.startswith("= "):
            yield f"          {text}"
        elif text != rows:  # (Who waits for a lock changes nothing.)
            rows = text
            yield f"          = {text[2:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.model", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all of three workers' spaces (half an hour or more)")
    parser.add_argument(
        "--space",
        choices=[*REDUCED, *FULL, *LARGE],
        metavar="NAME",
        action="append",
        help="explore this space only; may be repeated",
    )
    parser.add_argument(
        "--variant", choices=list(VARIANTS), metavar="NAME", help="how this sabotage fails, in steps"
    )
    parser.add_argument("--list", action="store_true", help="list the spaces and the sabotages")
    parser.add_argument("--memory", type=int, default=6_000, metavar="MIB", help="for one run (default: 6000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for name, space in (REDUCED | FULL | LARGE).items():
            print(f"{name}: {space}")
        for name, variant in VARIANTS.items():
            print(f"{name}: {variant.what} ({variant.violates})")
        return 0
    with tempfile.TemporaryDirectory(prefix="fencepost-model-") as directory:
        explorer = Explorer(
            Path(directory),
            is_full=chosen.full or any(name not in REDUCED for name in chosen.space or ()),
            memory=chosen.memory,
            is_quiet=chosen.json,
        )
        _run(explorer, chosen)
    if chosen.json:
        print(json.dumps({"holds": not explorer.faults, "seen": explorer.seen}, indent=2))
    explorer.say("the model holds" if not explorer.faults else f"{explorer.faults} faults")
    return 1 if explorer.faults else 0


def _run(explorer: Explorer, chosen: argparse.Namespace) -> None:
    if chosen.variant:
        explorer.reject(chosen.variant, is_told=True)
        return
    spaces = FULL if chosen.full else REDUCED
    if chosen.space:
        spaces = {name: (REDUCED | FULL | LARGE)[name] for name in chosen.space}
    for name, space in spaces.items():
        explorer.explore(name, space)
    if not chosen.space:
        for name in VARIANTS:
            explorer.reject(name)


if __name__ == "__main__":
    ending.run(main)
