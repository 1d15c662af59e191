"""``python -m lab.fuzz``: every input that enters, so many cases, and a verdict."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from lab import ending
from lab.fuzz.campaign import Tally, numbered_case, report, run, run_target
from lab.fuzz.catalogue import TARGETS, by_name
from lab.fuzz.places import places
from lab.journal import Journal
from lab.numbers import natural, positive

CASES = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 0 where nothing failed."""
    given = _parser().parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    chosen = dict.fromkeys(given.target or [])
    targets = [by_name(name) for name in chosen] or [make() for make in TARGETS]
    to = sys.stderr if given.json else sys.stdout
    print(f"seed {seed}", file=to, flush=True)
    with places() as found:
        if given.case is not None:
            if len(targets) != 1:
                _parser().error("--case needs one --target")
            with targets[0].opened(found):
                print(f"case {given.case}: {numbered_case(targets[0], seed, given.case)!r:.4000}", file=to)
                tallies = [run_target(targets[0], seed, [given.case], lambda _: None)]
        else:
            tallies = run(
                targets,
                found,
                Journal(given.into, "target", "seed", "cases"),
                seed=seed,
                cases=given.cases,
                say=lambda text: print(text, file=to, flush=True),
            )
    if given.json:
        print(json.dumps(report(tallies, seed), indent=2))
    return _verdict(tallies, seed, to)


def _verdict(tallies: list[Tally], seed: int, to: TextIO) -> int:
    for tally in tallies:
        for failure in tally.failures:
            print(f"FAILED {failure}", file=to)
    cases, holds = sum(tally.cases for tally in tallies), all(tally.holds for tally in tallies)
    verdict = "no fault" if holds else "FAULTS: see above"
    print(f"{cases} cases of {len(tallies)} targets, seed {seed}: {verdict}", file=to)
    return 0 if holds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeats a run; drawn at random and printed where left out")
    parser.add_argument("--cases", type=positive, default=CASES, help=f"of all targets together (default {CASES})")
    parser.add_argument("--target", action="append", choices=[make.name for make in TARGETS], help="only this one")
    parser.add_argument("--case", type=natural, help="only the case of this number, of one target")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE",
        help="keep what is found; a run with the same seed goes on where it ends",
    )
    parser.add_argument("--json", action="store_true", help="print the result for scripts")
    return parser


if __name__ == "__main__":
    ending.run(main)
