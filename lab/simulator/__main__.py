"""``python -m lab.simulator``: explore schedules, or repeat one."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence

from lab.simulator import seams
from lab.simulator.campaign import Totals, explore
from lab.simulator.plan import Plan, plan_of
from lab.simulator.run import Result, simulate
from lab.simulator.shrink import LeftOut, shrunk

TRACE_LINES = 40
USUAL_SCHEDULES = 2_000
PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    if options.only is not None:
        return _repeat(options.only, LeftOut.read(options.without), lines=options.trace)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if not options.json:
        print(f"simulator: seed {seed}", flush=True)
    totals = explore(
        _seeds(seed, options.schedules, options.hours), is_enough=_enough(options), on_progress=_progress(options)
    )
    if options.json:
        print(json.dumps({"seed": seed, **totals.as_dict()}))
    else:
        _tell(totals)
        for failed in totals.failed:
            _explain(failed)
    return 1 if totals.failed or not totals.schedules else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulator",
        description="Runs the shipped dispatcher on a virtual clock over the fake store, with faults.",
    )
    parser.add_argument(
        "--seed", type=int, help="where the schedules' own seeds begin; drawn and printed if left out"
    )
    parser.add_argument(
        "--schedules", type=int, help=f"how many ({USUAL_SCHEDULES} where --hours is left out too)"
    )
    parser.add_argument("--hours", type=float, help="stop after so many hours of wall time (not of virtual time)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first schedule that fails")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat the one schedule with this very seed")
    parser.add_argument(
        "--without", default="", metavar="LIST", help="with --only: leave out faults, messages, processes"
    )
    parser.add_argument("--trace", type=int, default=TRACE_LINES, metavar="LINES", help="lines of a trace to show")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _seeds(seed: int, schedules: int | None, hours: float | None) -> Sequence[int] | itertools.count[int]:
    if schedules is None and hours is not None:
        return itertools.count(seed)
    return range(seed, seed + (USUAL_SCHEDULES if schedules is None else schedules))


def _enough(options: argparse.Namespace) -> Callable[[Totals], bool]:
    ends_at = None if options.hours is None else time.monotonic() + options.hours * 3600

    def is_enough(totals: Totals) -> bool:
        if totals.failed and not options.keep_going:
            return True
        return ends_at is not None and time.monotonic() >= ends_at

    return is_enough


def _progress(options: argparse.Namespace) -> Callable[[Totals], None]:
    told_at = time.monotonic()

    def tell(totals: Totals) -> None:
        nonlocal told_at
        if options.json or time.monotonic() < told_at + PROGRESS_SECONDS:
            return
        told_at = time.monotonic()
        faults, duplicates = totals.faults.total(), totals.duplicates.total()
        print(
            f"  {totals.schedules} schedules, {totals.rate:.0f}/s, {faults} faults, {totals.publishes} publishes, "
            f"{duplicates} duplicates, {len(totals.failed)} failed",
            flush=True,
        )

    return tell


def _tell(totals: Totals) -> None:
    print(
        f"{totals.schedules} schedules in {totals.cpu_seconds:.1f} s of CPU ({totals.rate:.1f}/s): "
        f"{totals.seconds / 3600:.2f} virtual hours, {totals.steps} steps, {totals.publishes} publishes, "
        f"{totals.accepted} accepted"
    )
    for name, found in (("faults", totals.faults), ("duplicates", totals.duplicates)):
        print(f"  {name}, {found.total()}: " + ", ".join(f"{kind} {many}" for kind, many in sorted(found.items())))
    print(f"{len(totals.failed)} failed" if totals.failed else "0 violations, 0 unexplained duplicates")


def _explain(failed: Result) -> None:
    """Print a schedule that failed, made short, and how to repeat it."""
    seed = failed.plan.seed
    print(f"\nseed {seed}: {failed.violations[0]}")
    first = failed.violations[0].split(":")[0]

    def fails(plan: Plan) -> bool:
        found = simulate(plan).violations
        return bool(found) and found[0].split(":")[0] == first

    with seams.simulated():
        left_out = shrunk(failed.plan, fails)
    print(f"repeat it:      python -m lab.simulator --only {seed}")
    print(f"its short form: python -m lab.simulator --only {seed} --without '{left_out}'")
    _repeat(seed, left_out, lines=TRACE_LINES)


def _repeat(seed: int, left_out: LeftOut, *, lines: int) -> int:
    plan = left_out.of(plan_of(seed))
    with seams.simulated():
        result = simulate(plan, keeps_trace=True)
    print(f"{plan.processes} processes, {len(plan.messages)} messages, {len(plan.faults)} faults:")
    for fault in plan.faults:
        print(f"  {fault}")
    for entry in result.trace[-lines:]:
        print(f"  {entry[0]:10.6f}  " + " ".join(map(str, entry[1:])))
    print(f"trace {result.digest()}: " + ("; ".join(result.violations) or "no violation"))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
