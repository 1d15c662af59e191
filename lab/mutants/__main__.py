"""``python -m lab.mutants``: sabotage the protocol in many small ways, and see which tests notice."""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.postgres import pg18_bin_dir, running_server

from lab.mutants.mutant import Mutant
from lab.mutants.table import MUTANTS
from lab.mutants.trial import Copy, Verdict

UNSOUND = "tests_that_fail_without_a_mutant"

NEEDED = 0.98
"""The share of the mutants that must be noticed; what cannot be noticed does not count."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        for each in MUTANTS:
            print(f"{each.name:32} {each.what}  [{each.file}]")
        return 0
    chosen = _chosen(options.only)
    began = time.monotonic()
    with running_server(pg18_bin_dir()) as server:
        verdicts, unsound = try_all(chosen, options.jobs, server.directory, quiet=options.json)
    report = summary(verdicts, unsound, time.monotonic() - began)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _tell(report)
    return 0 if report["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this mutant, or those whose file has NAME"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once (2)")
    parser.add_argument("--json", action="store_true", help="the whole report, for a script")
    parser.add_argument("--list", action="store_true", help="say what there is, and try nothing")
    return parser


def _chosen(only: Sequence[str] | None) -> list[Mutant]:
    if not only:
        return MUTANTS
    chosen = [each for each in MUTANTS if any(each.name == name or name in each.file for name in only)]
    if not chosen:
        sys.exit(f"no such mutant: {', '.join(only)}; see --list")
    return chosen


def try_all(
    mutants: Sequence[Mutant], jobs: int, server: Path, *, quiet: bool = False, confirms: bool = True
) -> tuple[list[Verdict], str]:
    """Try mutants, some at once; return what became of each, and what is wrong with the tests without them.

    Args:
        server: the directory of a PostgreSQL 18 that runs.
        confirms: run the tests that noticed something once more, without any mutant.
    """
    verdicts: list[Verdict] = []
    with (
        tempfile.TemporaryDirectory(prefix="fp-mutants-") as directory,
        ThreadPoolExecutor(jobs) as pool,
    ):
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(directory) / str(number)))

        def one(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return copy.try_out(mutant, server)
            finally:
                copies.put(copy)

        futures = [pool.submit(one, mutant) for mutant in mutants]
        try:
            for future in as_completed(futures):
                verdict = future.result()
                verdicts.append(verdict)
                if not quiet:
                    print(_line(len(verdicts), len(mutants), verdict), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # who is told to end does not try the rest
            raise
        noticed = [each.by for each in verdicts if each.by and confirms]
        unsound = copies.get().unsound(noticed, server)
    return sorted(verdicts, key=lambda each: mutants.index(each.mutant)), unsound


def _line(number: int, total: int, verdict: Verdict) -> str:
    mark = "survived (as expected)" if _is_explained(verdict) else verdict.state
    by = verdict.by.rpartition("/")[2] or verdict.why
    return f"{number:4}/{total} {mark:9} {verdict.mutant.name:32} {verdict.seconds:5.1f} s  {by}"


def _is_explained(verdict: Verdict) -> bool:
    return verdict.state == "survived" and bool(verdict.mutant.equivalent)


def summary(verdicts: Sequence[Verdict], unsound: str, seconds: float) -> dict[str, object]:
    """Return the report; ``ok`` where enough were noticed, each survivor is explained, and the tests are sound."""
    by_state = {
        state: [each for each in verdicts if each.state == state] for state in ("killed", "survived", "nonsense")
    }
    unexplained = [each for each in by_state["survived"] if not each.mutant.equivalent]
    found_out = [each for each in by_state["killed"] if each.mutant.equivalent]
    share = len(by_state["killed"]) / len(verdicts)
    return {
        "ok": share >= NEEDED and not (unexplained or found_out or by_state["nonsense"] or unsound),
        "mutants": len(verdicts),
        "killed": len(by_state["killed"]),
        "share": round(share, 4),
        "survived_with_reason": {
            each.mutant.name: each.mutant.equivalent for each in by_state["survived"] if each.mutant.equivalent
        },
        "survived_without_reason": {each.mutant.name: each.mutant.what for each in unexplained},
        "noticed_though_said_to_be_equivalent": {each.mutant.name: each.by for each in found_out},
        "nonsense": {each.mutant.name: each.why for each in by_state["nonsense"]},
        UNSOUND: unsound,
        "minutes": round(seconds / 60, 1),
        "killed_by": {each.mutant.name: each.by or each.why for each in by_state["killed"]},
    }


def _tell(report: dict[str, object]) -> None:
    for title, found in report.items():
        if isinstance(found, dict) and found and title != "killed_by":
            print(f"\n{title.replace('_', ' ')}:")
            for name, text in found.items():
                print(f"  {name}: {text}")
    if report[UNSOUND]:
        print(f"\nof the tests that noticed a mutant, some fail without it:\n{report[UNSOUND]}")
    print(
        f"\n{'OK' if report['ok'] else 'NOT OK'}: {report['killed']} of {report['mutants']} mutants noticed"
        f" ({float(str(report['share'])):.1%}, at least {NEEDED:.0%} must be), {report['minutes']} minutes"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped as well
    sys.exit(main())
