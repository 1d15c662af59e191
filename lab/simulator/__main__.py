"""``python -m lab.simulator``: explore schedules, or repeat one."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from lab import ending
from lab.numbers import positive, some
from lab.simulator import seams
from lab.simulator.campaign import Totals
from lab.simulator.kinds import MAKERS, name_of, simulate
from lab.simulator.schedule import Schedule
from lab.simulator.shrink import LeftOut, shrunk
from lab.simulator.slices import Book, explored, slices

TRACE_LINES = 40
USUAL_SCHEDULES = 2_000
PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.only is not None:
        made = MAKERS[options.of](options.only)
        try:
            left_out = LeftOut.read(options.without)
        except ValueError as error:
            parser.error(f"--without: {error}")
        return _repeat(made, left_out, lines=options.trace)
    if options.without:
        parser.error("--without needs --only: it leaves something out of one schedule")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if not options.json:
        print(f"simulator: seed {seed}", flush=True)
    totals = _explored(options, seed)
    if options.json:
        print(json.dumps({"seed": seed, **totals.as_dict()}))
    else:
        _tell(totals)
        for failed, violation in totals.failed.items():
            _explain(MAKERS[options.of](failed), violation)
    return 1 if totals.failed or not totals.schedules else 0


def _explored(options: argparse.Namespace, seed: int) -> Totals:
    schedules = options.schedules
    if schedules is None and options.hours is None:
        schedules = USUAL_SCHEDULES
    ends_at = None if options.hours is None else time.monotonic() + options.hours * 3600
    book = Book(options.into, options.of, seed, schedules)
    wanted = (each for each in slices(seed, schedules) if not book.has(each))
    told_at = time.monotonic()
    for seeds, found in explored(wanted, options.of, cores=options.cores, keeps_going=options.keep_going):
        book.add(seeds, found)
        now = time.monotonic()
        if now >= told_at + PROGRESS_SECONDS and not options.json:
            told_at = now
            _tell_progress(book.total())
        if (found.failed and not options.keep_going) or (ends_at is not None and now >= ends_at):
            break
    return book.total()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulator",
        description="Runs the shipped dispatcher and worker on a virtual clock over the fake store, with faults.",
    )
    parser.add_argument(
        "--of", choices=tuple(MAKERS), default="both", help="what is simulated; both: in turns (the default)"
    )
    parser.add_argument(
        "--seed", type=int, help="where the schedules' own seeds begin; drawn and printed if left out"
    )
    parser.add_argument(
        "--schedules", type=positive, help=f"how many ({USUAL_SCHEDULES} where --hours is left out too)"
    )
    parser.add_argument("--hours", type=some, help="stop after so many hours of wall time (not of virtual time)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first schedule that fails")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat the one schedule with this very seed")
    parser.add_argument(
        "--without", default="", metavar="LIST", help="with --only: leave out faults, messages or jobs, processes"
    )
    parser.add_argument(
        "--trace", type=positive, default=TRACE_LINES, metavar="LINES", help="lines of a trace to show"
    )
    parser.add_argument("--cores", type=positive, default=1, help="processes that share the schedules (1)")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE",
        help="append the figures of each slice; what is in there is not done again, and counts",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _tell_progress(totals: Totals) -> None:
    print(
        f"  {totals.schedules} schedules, {totals.rate:.0f}/s of CPU, {totals.faults.total()} faults, "
        f"{_counted(totals)}, {totals.duplicates.total()} duplicates, {len(totals.failed)} failed",
        flush=True,
    )


def _tell(totals: Totals) -> None:
    print(
        f"{totals.schedules} schedules in {totals.cpu_seconds:.1f} s of CPU ({totals.rate:.1f}/s): "
        f"{totals.seconds / 3600:.2f} virtual hours, {totals.steps} steps, {_counted(totals)}"
    )
    for name, found in (("faults", totals.faults), ("duplicates", totals.duplicates)):
        print(f"  {name}, {found.total()}: " + ", ".join(f"{kind} {many}" for kind, many in sorted(found.items())))
    print(f"{len(totals.failed)} failed" if totals.failed else "0 violations, 0 unexplained duplicates")


def _counted(totals: Totals) -> str:
    return ", ".join(f"{many} {what}" for what, many in totals.counts.items())


def _explain(plan: Schedule, violation: str) -> None:
    """Print a schedule that failed, made short, and how to repeat it."""
    print(f"\nseed {plan.seed}: {violation}")
    first = violation.split(":")[0]

    def fails(smaller: Schedule) -> bool:
        found = simulate(smaller).violations
        return bool(found) and found[0].split(":")[0] == first

    with seams.simulated():
        left_out = shrunk(plan, fails)
    again = f"python -m lab.simulator --of {name_of(plan)} --only {plan.seed}"
    print(f"repeat it:      {again}")
    print(f"its short form: {again} --without '{left_out}'")
    _repeat(plan, left_out, lines=TRACE_LINES)


def _repeat(made: Schedule, left_out: LeftOut, *, lines: int) -> int:
    plan = left_out.of(made)
    with seams.simulated():
        result = simulate(plan, keeps_trace=True)
    print(f"{plan.processes} processes, {len(plan.numbers)} {name_of(plan)}, {len(plan.faults)} faults:")
    for fault in plan.faults:
        print(f"  {fault}")
    for entry in result.trace[-lines:]:
        print(f"  {entry[0]:10.6f}  " + " ".join(map(str, entry[1:])))
    print(f"trace {result.digest()}: " + ("; ".join(result.violations) or "no violation"))
    return 1 if result.violations else 0


if __name__ == "__main__":
    ending.run(main)
