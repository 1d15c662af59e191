"""``python -m lab.crashes``: end the session at every statement of everything, recover, and judge."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from lab.crashes.campaign import a_world, campaign


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.crashes", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every nth point (1: all of them)")
    parser.add_argument("--offset", type=int, default=0, help="of the points left out, begin with this one (0)")
    parser.add_argument("--json", action="store_true", help="the report, for a script")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    tell = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    with a_world() as world:
        store = campaign(world, every=options.every, offset=options.offset, tell=tell)
    report = {
        "ok": not (store.problems or store.never_run),
        "scenarios": store.scenarios,
        "statements": store.statements,
        "points": store.points,
        "cut": store.cut,
        "problems": store.problems,
        "operations_that_no_scenario_runs": store.never_run,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    print(json.dumps(report, indent=2) if options.json else _told(report))
    return 0 if report["ok"] else 1


def _told(report: dict[str, object]) -> str:
    lines = [f"no scenario runs {name}" for name in _listed(report["operations_that_no_scenario_runs"])]
    lines += [f"FAILED {text}" for text in _listed(report["problems"])]
    verdict = "OK" if report["ok"] else "NOT OK"
    lines.append(
        f"{verdict}: {report['scenarios']} scenarios, {report['statements']} statements, {report['cut']} of"
        f" {report['points']} points cut, {len(_listed(report['problems']))} problems, {report['minutes']} minutes"
    )
    return "\n".join(lines)


def _listed(found: object) -> list[str]:
    return found if isinstance(found, list) else []


if __name__ == "__main__":
    sys.exit(main())
