"""``python -m lab.crashes``: end the session at every statement of everything, recover, and judge."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence

from lab.crashes.campaign import a_world, campaign, courses
from lab.crashes.runtime import Played, played
from lab.crashes.scripts import SCRIPTS, Dispatching, Working
from lab.crashes.world import World

PARTS = ("store", "runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.crashes", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="the operations, or a dispatcher and a worker (both)")
    parser.add_argument("--every", type=int, default=1, help="only every nth point (1: all of them)")
    parser.add_argument("--offset", type=int, default=0, help="of the points left out, begin with this one (0)")
    parser.add_argument("--json", action="store_true", help="the report, for a script")
    options = parser.parse_args(arguments)
    logging.getLogger("fencepost").setLevel(logging.CRITICAL)  # what it says of each cut is what is expected
    tell = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    parts = [options.only] if options.only else PARTS
    with a_world() as world:
        reports = [_tried(part, world, options.every, options.offset, tell) for part in parts]
    ok = all(each["ok"] for each in reports)
    print(json.dumps({"ok": ok, "parts": reports}, indent=2) if options.json else _told(reports))
    return 0 if ok else 1


def _tried(part: str, world: World, every: int, offset: int, tell: Callable[[str], None]) -> dict[str, object]:
    began = time.monotonic()
    found: dict[str, object]
    if part == "store":
        store = campaign(world, courses(world), every=every, offset=offset, tell=tell)
        ok = not (store.problems or store.never_run)
        found = vars(store)
    else:
        plays = [_of_script(make(world.url), every, offset, tell) for make in SCRIPTS]
        found = {
            "scenarios": len(plays),
            "points": sum(each.points for each in plays),
            "cut": sum(each.cut for each in plays),
            "not_reached": [text for each in plays for text in each.not_reached],
            "problems": [text for each in plays for text in each.problems],
        }
        ok = not found["problems"]
    return {"part": part, "ok": ok, "minutes": round((time.monotonic() - began) / 60, 1)} | found


def _of_script(script: Dispatching | Working, every: int, offset: int, tell: Callable[[str], None]) -> Played:
    with contextlib.closing(script):
        return played(script.world.url, script, every=every, offset=offset, tell=tell)


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped as well
    sys.exit(main())
