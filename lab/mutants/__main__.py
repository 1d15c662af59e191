"""``python -m lab.mutants``: sabotage the protocol in many small ways, and see which tests notice."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.postgres import pg18_bin_dir, running_server

from lab import ending
from lab.mutants.mutant import Mutant
from lab.mutants.record import Record
from lab.mutants.table import MUTANTS
from lab.mutants.trial import PATIENCE, Copy, Verdict
from lab.numbers import positive, some

UNDECIDED = ("nonsense", "hung", "doubtful")
STATES = ("killed", "survived", *UNDECIDED)
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
    trial = Trial(options.jobs, options.patience, Record(options.record), is_quiet=options.json)
    with running_server(pg18_bin_dir()) as server:
        verdicts, unsound = trial.of(chosen, server.directory)
    report = summary(verdicts, unsound)
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
    parser.add_argument("--jobs", type=positive, default=2, help="mutants at once (2)")
    parser.add_argument(
        "--patience", type=some, default=PATIENCE, metavar="SECONDS", help=f"for one test ({PATIENCE:g})"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep each verdict here, and do not repeat what it decided"
    )
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


@dataclass(frozen=True, slots=True)
class Trial:
    """How mutants are tried.

    Args:
        jobs: mutants at once.
        patience: seconds that one test may take.
        record: of what was decided before.
        is_quiet: print nothing.
    """

    jobs: int = 1
    patience: float = PATIENCE
    record: Record = field(default_factory=lambda: Record(None))
    is_quiet: bool = False

    def of(self, mutants: Sequence[Mutant], server: Path, *, confirms: bool = True) -> tuple[list[Verdict], str]:
        """Return what became of each mutant, and what is wrong with the tests without them.

        Args:
            server: the directory of a PostgreSQL 18 that runs.
            confirms: run the tests that noticed something once more, without any mutant.
        """
        verdicts = self.record.decided(mutants)
        known = {each.mutant.name for each in verdicts}
        if known and not self.is_quiet:
            print(f"{len(known)} of {len(mutants)} were decided before")
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fp-mutants-")))
            made = [Copy(directory / str(number), self.patience) for number in range(self.jobs)]
            for copy in made:
                stack.callback(copy.close)
            for verdict in self._each([each for each in mutants if each.name not in known], made, server):
                verdicts.append(verdict)
                self.record.keep(verdict)
                if not self.is_quiet:
                    print(_line(len(verdicts), len(mutants), verdict), flush=True)
            noticed = [each.by for each in verdicts if each.state == "killed" and confirms]
            unsound = made[0].unsound(noticed, server)
        return sorted(verdicts, key=lambda each: mutants.index(each.mutant)), unsound

    def _each(self, mutants: Sequence[Mutant], made: Sequence[Copy], server: Path) -> Iterator[Verdict]:
        """Try them, some at once, and return each as soon as it is decided."""
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            copies.put(copy)

        def one(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return copy.try_out(mutant, server, self.record.noticed_before(mutant))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for future in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                    yield future.result()
            except BaseException:
                # Who is told to end tries no more of them, and does not wait for a test that hangs.
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in made:
                    copy.give_up()
                raise


def _line(number: int, total: int, verdict: Verdict) -> str:
    mark = "survived (as expected)" if _is_explained(verdict) else verdict.state
    by = verdict.by.partition("/")[2] or verdict.why
    return f"{number:4}/{total} {mark:9} {verdict.mutant.name:32} {verdict.seconds:5.1f} s  {by}"


def _is_explained(verdict: Verdict) -> bool:
    return verdict.state == "survived" and bool(verdict.mutant.equivalent)


def summary(verdicts: Sequence[Verdict], unsound: str) -> dict[str, object]:
    """Return the report; ``ok`` where enough were noticed, each survivor is explained, and the tests are sound."""
    by_state = {state: [each for each in verdicts if each.state == state] for state in STATES}
    unexplained = [each for each in by_state["survived"] if not each.mutant.equivalent]
    found_out = [each for each in by_state["killed"] if each.mutant.equivalent]
    undecided = {
        state: {each.mutant.name: f"{each.by} {each.why}".strip() for each in by_state[state]}
        for state in UNDECIDED
    }
    share = len(by_state["killed"]) / len(verdicts)
    return {
        "ok": share >= NEEDED and not (unexplained or found_out or any(undecided.values()) or unsound),
        "mutants": len(verdicts),
        "killed": len(by_state["killed"]),
        "share": round(share, 4),
        "survived_with_reason": {
            each.mutant.name: each.mutant.equivalent for each in by_state["survived"] if each.mutant.equivalent
        },
        "survived_without_reason": {each.mutant.name: each.mutant.what for each in unexplained},
        "noticed_though_said_to_be_equivalent": {each.mutant.name: each.by for each in found_out},
        **undecided,
        UNSOUND: unsound,
        "minutes": round(sum(each.seconds for each in verdicts) / 60, 1),
        "by_file": _by_file(verdicts),
        "killed_by": {each.mutant.name: each.by for each in by_state["killed"]},
    }


def _by_file(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    counted: dict[str, Counter[str]] = {}
    for each in verdicts:
        state = "equivalent" if _is_explained(each) else each.state
        counted.setdefault(each.mutant.file, Counter())[state] += 1
    return {file: dict(counts) for file, counts in sorted(counted.items())}


def _tell(report: dict[str, object]) -> None:
    for title, found in report.items():
        if isinstance(found, dict) and found and title not in ("killed_by", "by_file"):
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
    ending.run(main)
