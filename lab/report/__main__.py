"""``python -m lab.report``: run parts of the lab, keep what they come to, and write the page's figures."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import ending
from lab.report import page, runs
from lab.report.parts import PARTS, Part
from lab.report.runs import ROOT, Run


class NoResult(Exception):
    """A part printed no JSON."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 where nothing was found."""
    options, given = _parser().parse_known_args(arguments)
    names = options.part or list(PARTS)
    if options.took is not None:
        found = [_taken(PARTS[names[0]], options, given)]
    elif options.write:
        found = []
    else:
        found = [_run(PARTS[name], _size(PARTS[name], given, whole=options.whole), options) for name in names]
    for run in found:
        runs.keep(run, options.log)
    page.write(runs.read(options.log), options.page)
    print(f"wrote the figures of {options.page}", flush=True)
    return 0 if all(run.held for run in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.report",
        description=__doc__,
        epilog="What follows the options is given to the part's command, such as --minutes 10 --seed 7.",
        allow_abbrev=False,
    )
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; can be repeated")
    parser.add_argument(
        "--whole", action="store_true", help="as much as was asked for, and not a minute or two each"
    )
    parser.add_argument("--write", action="store_true", help="run nothing, and write the page from what was kept")
    parser.add_argument(
        "--took", type=Path, metavar="FILE", help="keep a run that is over: the JSON that --part printed"
    )
    parser.add_argument("--of-commit", metavar="COMMIT", help="with --took: what was checked out")
    parser.add_argument("--seconds", type=int, help="with --took: how long it took, where the JSON does not say")
    parser.add_argument("--remark", default="", help="what a reader has to know of the run")
    parser.add_argument("--log", type=Path, default=runs.LOG, help="where runs are kept")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="where the figures are written")
    return parser


def _size(part: Part, given: Sequence[str], *, whole: bool) -> Sequence[str]:
    return [*part.whole, *given] if whole else given or part.quick


def _run(part: Part, further: Sequence[str], options: argparse.Namespace) -> Run:
    """Run a part; what it says on its way goes to stderr."""
    print(f"{part.name}: {part.does}", flush=True)
    argv = ["-m", *part.module, *further]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *argv, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    took = round(time.monotonic() - began)
    run = _kept(part, argv, _parsed(part, done.stdout), took, done.returncode == 0, options)
    print(f"  {'nothing found' if run.held else 'FOUND SOMETHING'}: {run.figures}, {took} s", flush=True)
    return run


def _taken(part: Part, options: argparse.Namespace, further: Sequence[str]) -> Run:
    """Take the JSON of a run that is over."""
    found = _parsed(part, options.took.read_text(encoding="utf-8"))
    seconds = options.seconds if options.seconds is not None else round(float(found.get("seconds", 0)))
    return _kept(part, ["-m", *part.module, *further], found, seconds, _held(found), options)


def _held(found: Mapping[str, Any]) -> bool:
    """Return what a part says of itself, in its own word."""
    for word in ("holds", "clean", "ok"):
        if word in found:
            return bool(found[word])
    return not (found.get("disagreement") or found.get("failed"))


def _kept(
    part: Part,
    argv: Sequence[str],
    found: Mapping[str, Any],
    seconds: int,
    held: bool,
    options: argparse.Namespace,
) -> Run:
    return Run(
        part=part.name,
        command=shlex.join(["python", *argv]),
        seed=found.get("seed"),
        commit=options.of_commit or runs.commit(),
        date=runs.today(),
        machine=runs.machine(),
        seconds=seconds,
        held=held,
        figures=part.read(found),
        remark=options.remark,
    )


def _parsed(part: Part, text: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise NoResult(f"{part.name} printed no JSON: {text[-500:]!r}") from error
    return found


if __name__ == "__main__":
    ending.run(main)
