"""``python -m lab.conformance``: random histories on the model, the fake store and PostgreSQL, with a verdict."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tests.postgres import pg15_bin_dir, pg18_bin_dir, running_server
from tests.store.databases import migrated_database

from fencepost.embedded import PostgresServer
from lab import ending
from lab.conformance import reach
from lab.conformance.campaign import Report, campaign
from lab.conformance.fake import FakeStore
from lab.conformance.faults import FAKE_FAULTS, TEXT_FAULTS, planted, with_fault
from lab.conformance.postgres import PostgresStore
from lab.journal import Journal
from lab.numbers import positive

SLICE = 500
"""Histories of one line, where reports are kept in a file."""

BINARIES = {"18": pg18_bin_dir, "15": pg15_bin_dir}


@contextmanager
def stores_on(servers: list[tuple[str, PostgresServer]]) -> Iterator[list[FakeStore | PostgresStore]]:
    """The fake store, and one in a database of its own on each server."""
    with ExitStack() as stack:
        found: list[FakeStore | PostgresStore] = [stack.enter_context(closing(FakeStore()))]
        for name, server in servers:
            migrated = stack.enter_context(migrated_database(server))
            found.append(stack.enter_context(closing(PostgresStore(migrated.url, name))))
        yield found


def told(report: Report) -> str:
    """Say what was run and found."""
    lines = [
        f"seed {report.seed}: {report.histories} histories, {report.steps} steps on {', '.join(report.stores)}"
    ]
    lines += [f"  {many:8d} {kind}" for kind, many in report.counts.most_common()]
    lines.append(f"{report.seconds:.1f} s, {1000 * report.seconds / max(1, report.histories):.1f} ms a history")
    if report.disagreement is None:
        lines.append("verdict: the model and the stores agreed after every step")
    else:
        lines.append("verdict: THEY DISAGREE, in this history:")
        lines += [f"  session {session}: {step}" for session, step in report.history]
        lines.append(report.disagreement)
    return "\n".join(lines)


def as_dict(report: Report) -> dict[str, Any]:
    """Return a report for JSON."""
    return {**vars(report), "history": [(session, str(step)) for session, step in report.history]}


def in_slices(stores: list[FakeStore | PostgresStore], seed: int, histories: int, into: Path) -> Report:
    """Run a campaign of many short ones, whose reports are kept one by one; return their sum.

    A slice has the seed of the first plus its number, so that it is repeated alone. Who ends the run loses one:
    the same command goes on behind those that are kept.
    """
    total = Report(seed, [store.name for store in stores])
    journal = Journal(into, "seed", "stores", "histories")
    kept = {(each["seed"], each["histories"]): each for each in journal.found if each["stores"] == total.stores}
    while total.histories < histories and total.disagreement is None:
        number = min(SLICE, histories - total.histories)
        place = seed + total.histories // SLICE
        found = kept.get((place, number))
        if found is not None and found["disagreement"] is None:
            total.add(Report(**{**found, "counts": Counter(found["counts"])}))
            continue
        report = campaign(stores, histories=number, seed_number=place)
        journal.add(as_dict(report))
        total.add(report)
        print(f"{total.histories} histories, {total.seconds:.0f} s", file=sys.stderr, flush=True)
    return total


def reached(histories: int) -> int:
    """List statements and operations: how often each is sent, or run at all, or why not. Return 1 for a gap."""
    with closing(FakeStore()) as fake, reach.watched() as ran:
        campaign([fake], histories=histories, seed_number=1)
        operations = ran()
    gaps = 0
    for everything, found, left_out in (
        (reach.statements(), fake.sent, reach.LEFT_OUT),
        (set(reach.operations()), dict.fromkeys(operations, "run"), reach.OPERATIONS_LEFT_OUT),
    ):
        for name in sorted(everything):
            what = found.get(name) or reach.reason(name, left_out) or "NEITHER EXERCISED NOR NAMED"
            gaps += str(what).isupper()
            print(f"{name:32} {what}")
    return int(gaps > 0)


def faults_found(stores: list[FakeStore | PostgresStore], seed: int, histories: int) -> int:
    """Plant each fault in turn, say at which history it was found, and return how many were not."""
    missed = 0
    for fault in TEXT_FAULTS:
        with planted(fault):
            report = campaign(
                stores[:2], histories=histories, seed_number=seed, shrink=False, concerns=fault.statement
            )
        missed += _said(str(fault), report)
    for name in FAKE_FAULTS:
        with closing(FakeStore(with_fault(name))) as fake:
            missed += _said(name, campaign([fake], histories=histories, seed_number=seed, shrink=False))
    print(f"verdict: {missed} of {len(TEXT_FAULTS) + len(FAKE_FAULTS)} faults were not found")
    return missed


def _said(name: str, report: Report) -> bool:
    is_missed = report.disagreement is None
    print(f"{'NOT FOUND in' if is_missed else 'found in history'} {report.histories:5d}: {name}", flush=True)
    return is_missed


def _progress(report: Report) -> None:
    if report.histories % 1000 == 0:
        print(f"{report.histories} histories, {report.seconds:.0f} s", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; return 0 where all agreed."""
    parser = argparse.ArgumentParser(prog="python -m lab.conformance", description=__doc__)
    parser.add_argument("--histories", type=positive, default=2000, help="how many (2000)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run: the same histories")
    parser.add_argument(
        "--postgres", nargs="*", choices=BINARIES, default=["18", "15"], help="major versions (18 15)"
    )
    parser.add_argument("--faults", action="store_true", help="plant faults instead, each of which must be found")
    parser.add_argument("--reach", action="store_true", help="list what is exercised of the store")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument(
        "--into",
        type=Path,
        default=None,
        help="in slices of 500 with seeds of their own: keep the report of each there, and go on behind them",
    )
    parser.add_argument("--out", type=Path, default=None, help="write the report there as JSON besides")
    options = parser.parse_args(arguments)
    if options.out is not None and (options.out.is_dir() or not options.out.absolute().parent.is_dir()):
        parser.error(f"--out {options.out}: nothing can be written there")
    if options.reach:
        return reached(options.histories)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with ExitStack() as stack:
        names = dict.fromkeys(options.postgres)
        servers = [(f"PostgreSQL {name}", stack.enter_context(running_server(BINARIES[name]()))) for name in names]
        stores = stack.enter_context(stores_on(servers))
        if options.faults:
            return int(faults_found(stores, seed, options.histories) > 0)
        if options.into is None:
            report = campaign(stores, histories=options.histories, seed_number=seed, progress=_progress)
        else:
            report = in_slices(stores, seed, options.histories, options.into)
    text = json.dumps(as_dict(report))
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text if options.json else told(report))
    return 0 if report.disagreement is None and report.histories > 0 else 1


if __name__ == "__main__":
    ending.run(main)
