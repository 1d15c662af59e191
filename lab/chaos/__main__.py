"""``python -m lab.chaos``: a run of chaos, or forced stale finalizes; see ``--help``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.postgres import fresh_database, pg15_bin_dir, pg18_bin_dir, running_server

from lab import ending
from lab.chaos import places, report, stale, stale_jobs
from lab.chaos.broker import Broker
from lab.chaos.cluster import Cluster
from lab.chaos.conductor import DRAIN_SECONDS, Conductor, Crew, Outcome, judge, keep_tables
from lab.chaos.disk import SIZE_MB, can_mount
from lab.chaos.schedule import KINDS
from lab.numbers import positive, some

Verdict = dict[str, Any]

RATE = 3.0
CREW = "3,2,2,1,1"
DISK_MB_A_MINUTE = 40
"""What a run writes, most of it the history of every row."""
NEEDS_STANDBY = {"failover_sync", "failover_lossy", "standby_instead"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.mode == "stale":
        return _stale(options)
    return _chaos(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description=__doc__)
    parser.add_argument(
        "mode", nargs="?", choices=["run", "stale"], default="run", help="run (the default) or stale"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats a plan of faults")
    parser.add_argument("--minutes", type=some, default=1.0, help="how long faults go on")
    parser.add_argument("--rate", type=some, default=RATE, help=f"faults a second (default {RATE:g})")
    parser.add_argument("--only", action="append", metavar="KIND", choices=KINDS, help="only these kinds of fault")
    parser.add_argument("--without", action="append", metavar="KIND", choices=KINDS, default=[], help="not these")
    parser.add_argument("--covering", action="store_true", help="every rare kind comes once at least")
    parser.add_argument(
        "--crew", default=CREW, help=f"dispatchers, job workers, producers, consumers, operators ({CREW})"
    )
    parser.add_argument(
        "--sabotage", action="store_true", help="dispatchers without a fence: it must not be found clean"
    )
    parser.add_argument("--patience", type=some, default=DRAIN_SECONDS, help="seconds to drain after the faults")
    parser.add_argument("--pg15", action="store_true", help="PostgreSQL 15 instead of 18")
    parser.add_argument("--keep", action="store_true", help="keep the history also where nothing is found")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--count", type=positive, default=100_000, help="stale: how many finalizes (100,000)")
    return parser


def _stale(options: argparse.Namespace) -> int:
    """Force stale writes: of messages, and half as many of jobs."""
    if not options.json:
        print(
            f"seed {options.seed}, {options.count} stale writes of messages, and half as many of jobs", flush=True
        )
    began = time.monotonic()
    with running_server(_bin_dir(options)) as server, fresh_database(server) as url:
        tally = stale.force(url, options.seed, options.count)
        tally += stale_jobs.force(url, options.seed, options.count // 2)
    took = time.monotonic() - began
    if options.json:
        told = {
            "seed": options.seed,
            "clean": tally.is_clean,
            "seconds": round(took, 1),
            "writes": dict(tally.writes),
        }
        told |= {"changed": tally.changed, "believed": tally.believed, "stopped": tally.stopped}
        print(json.dumps(told, indent=2))
    else:
        _tell(tally, took)
    return 0 if tally.is_clean else 1


def _tell(tally: stale.Tally, took: float) -> None:
    for what, times in sorted(tally.writes.items()):
        print(f"  {what:45} {times}")
    print(
        f"{sum(tally.writes.values())} stale writes in {took:.0f} s: {tally.changed} rows changed, "
        f"{tally.believed} not reported as lost, {tally.stopped} stopped by a constraint of the table alone"
    )


def _bin_dir(options: argparse.Namespace) -> Path:
    return pg15_bin_dir() if options.pg15 else pg18_bin_dir()


def _chaos(options: argparse.Namespace) -> int:
    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    say(f"seed {options.seed}, {options.minutes:g} minutes of faults")
    kinds = [kind for kind in (options.only or KINDS) if kind not in options.without]
    if not _can_do(kinds, say):
        return 1
    folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
    try:
        outcome, verdict = _in_folder(folder, options, kinds, say)
    except KeyboardInterrupt:
        shutil.rmtree(folder)  # of a run that was broken off nothing can be said
        raise
    told = report.as_dict(options.seed, options.minutes, outcome, verdict)
    if options.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(report.as_lines(told)))
    if told["clean"] and not options.keep:
        shutil.rmtree(folder)
    else:
        say(f"the history is in {folder}")
    say(f"seed {options.seed}: {'clean' if told['clean'] else 'NOT CLEAN'}")
    return 0 if told["clean"] else 1


def _can_do(kinds: list[str], say: Any) -> bool:
    """Leave out, loudly, what this machine cannot do; refuse where everything is required."""
    lacking = []
    if "disk_full" in kinds and not can_mount():
        lacking.append(("disk_full", "this process may not mount a tmpfs, so no disk can be full"))
    if "clock_skew" in kinds and not places.FAKETIME.exists():
        lacking.append(("clock_skew", f"{places.FAKETIME} is not there: install Debian's faketime"))
    for kind, why in lacking:
        say(f"LEFT OUT: {kind}: {why}")
        kinds.remove(kind)
    return not lacking or os.environ.get("FENCEPOST_REQUIRE_SERVERS") != "1"


def _in_folder(
    folder: Path, options: argparse.Namespace, kinds: list[str], say: Any
) -> tuple[Outcome, dict[str, Any]]:
    disk = SIZE_MB + round(DISK_MB_A_MINUTE * options.minutes) if "disk_full" in kinds else None
    with contextlib.ExitStack() as stack:
        servers = Path(tempfile.mkdtemp(prefix="fencepost-chaos-servers-"))
        stack.callback(shutil.rmtree, servers, ignore_errors=True)
        servers.chmod(0o711)
        cluster = Cluster(servers, _bin_dir(options), disk=disk)
        stack.callback(cluster.close)
        if NEEDS_STANDBY & set(kinds):
            cluster.add_standby()
        broker = Broker(servers / "nats")
        with contextlib.closing(broker.server):
            crew = Crew.of(options.crew, sabotaged=options.sabotage)
            conductor = Conductor(folder, cluster, broker, options.seed, crew, say, patience=options.patience)
            outcome = conductor.run(options.minutes * 60, options.rate, kinds, covering=options.covering)
        verdict = judge(folder, cluster.primary.url)
        if options.keep or not report.is_clean(outcome, verdict):
            (folder / "postgres.log").write_text(cluster.log(), encoding="utf-8")
            if "error" not in verdict:  # the server may be why
                keep_tables(folder, cluster.primary.url)
        return outcome, verdict


if __name__ == "__main__":
    ending.run(main)
