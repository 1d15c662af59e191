"""``python -m lab.crashes``: end the session at every statement of everything, recover, and judge."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.postgres import fresh_database, pg18_bin_dir, running_server

from fencepost.embedded import PostgresServer
from lab import ending
from lab.crashes.campaign import campaign, courses, world_at
from lab.crashes.processes import lanes, played
from lab.crashes.scripts import SCRIPTS
from lab.journal import Journal
from lab.numbers import natural, positive

PARTS = ("store", "runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.crashes", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="the operations, or a dispatcher and a worker (both)")
    parser.add_argument("--every", type=positive, default=1, help="only every nth point (1: all of them)")
    parser.add_argument("--offset", type=natural, default=0, help="of those left out, begin with this one (0)")
    parser.add_argument("--json", action="store_true", help="the report, for a script")
    parser.add_argument("--into", type=Path, metavar="FILE", help="keep what is found; go on where it ends")
    options = parser.parse_args(arguments)
    logging.getLogger("fencepost").setLevel(logging.CRITICAL)  # what it says of each cut is what is expected
    to = sys.stderr if options.json else sys.stdout
    journal = Journal(options.into, "part", "point", "problems")
    chosen = [options.only] if options.only else PARTS
    with running_server(pg18_bin_dir()) as server:
        reports = [
            _tried(
                part, server, journal, options.every, options.offset, lambda text: print(text, file=to, flush=True)
            )
            for part in chosen
        ]
    ok = all(each["ok"] for each in reports)
    print(json.dumps({"ok": ok, "parts": reports}, indent=2) if options.json else _told(reports))
    return 0 if ok else 1


def _tried(
    part: str, server: PostgresServer, journal: Journal, every: int, offset: int, tell: Callable[[str], None]
) -> dict[str, object]:
    began = time.monotonic()
    found = (_of_store if part == "store" else _of_runtime)(server, journal, every, offset, tell)
    ok = bool(found["cut"]) and not (found["problems"] or found.get("never_run"))
    return {"part": part, "ok": ok, "minutes": round((time.monotonic() - began) / 60, 1)} | found


def _of_store(
    server: PostgresServer, journal: Journal, every: int, offset: int, tell: Callable[[str], None]
) -> dict[str, object]:
    with fresh_database(server) as url, world_at(url) as world:
        return vars(campaign(world, courses(world), journal, every=every, offset=offset, tell=tell))


def _of_runtime(
    server: PostgresServer, journal: Journal, every: int, offset: int, tell: Callable[[str], None]
) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="crashes-") as folder, lanes(server, Path(folder)) as places:
        plays = [
            played(make, make.__name__, places, journal, every=every, offset=offset, tell=tell) for make in SCRIPTS
        ]
    return {
        "scenarios": len(plays),
        "points": sum(each.points for each in plays),
        "cut": sum(each.cut for each in plays),
        "not_reached": [text for each in plays for text in each.not_reached],
        "problems": [text for each in plays for text in each.problems],
    }


def _told(reports: Sequence[dict[str, object]]) -> str:
    lines: list[str] = []
    for report in reports:
        lines += [f"no scenario runs {name}" for name in _listed(report.get("never_run"))]
        lines += [f"FAILED {text}" for text in _listed(report["problems"])]
        lines += [f"not reached: {text}" for text in _listed(report.get("not_reached"))]
        lines.append(
            f"{'OK' if report['ok'] else 'NOT OK'}: {report['part']}: {report['scenarios']} scenarios,"
            f" {report['cut']} of {report['points']} points cut, {len(_listed(report['problems']))} problems,"
            f" {report['minutes']} minutes"
        )
    return "\n".join(lines)


def _listed(found: object) -> list[str]:
    return found if isinstance(found, list) else []


if __name__ == "__main__":
    ending.run(main)
