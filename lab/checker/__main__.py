"""Judges a run by its history and its tables: whether every guarantee held, and what caused each duplicate."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import psycopg

from lab.checker.evidence import Evidence
from lab.checker.history import History, HistoryError, read_lines
from lab.checker.tables import read_tables
from lab.checker.verdict import judge


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where nothing is violated, 1 where something is, 2 where nothing can be said of the run."""
    parser = argparse.ArgumentParser(prog="python -m lab.checker", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="the history: a folder of *.jsonl files (see lab/checker/FORMAT.md)"
    )
    parser.add_argument("--database", required=True, metavar="URL", help="the database that survived the run")
    parser.add_argument("--schema", help="of fencepost's tables, where it is not on the search path")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    options = parser.parse_args(arguments)
    try:
        history = History(read_lines(options.folder))
        with psycopg.connect(options.database, autocommit=True, application_name="lab checker") as connection:
            tables = read_tables(connection, options.schema)
        verdict = judge(Evidence(history, tables))
    except (HistoryError, psycopg.Error, OSError) as error:
        print(f"cannot judge: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - a rule that fails has judged nothing: that is no violation
        print(f"cannot judge: {_where(error)}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(verdict.as_json(), indent=2))
    else:
        print(
            f"{len(history)} lines of history, {len(tables.changes)} changes of rows, {len(tables.jobs)} of jobs\n"
        )
        print(verdict.as_text())
    if verdict.is_empty:
        print("cannot judge: nothing that could have been a violation was seen", file=sys.stderr)
        return 2
    return 0 if verdict.is_clean else 1


def _where(error: Exception) -> str:
    """Say in which part of the checker something failed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


if __name__ == "__main__":
    sys.exit(main())
