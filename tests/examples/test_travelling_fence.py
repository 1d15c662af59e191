"""The example of a travelling fence with its real processes: what it tells, and what then is in the database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]


def test_a_worker_that_wakes_up_late_is_refused_downstream_and_by_the_outbox(database18: str) -> None:
    program = [sys.executable, "-W", "error", str(ROOT / "examples" / "travelling_fence.py"), database18]
    told = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "first: publishes under token 1",
        "story: the first worker is frozen, its lease runs out",
        "second: publishes under token 2",
        "second: was let in",
        "second: delivered the message",
        "story: the first worker is woken up",
        "first: wakes up, and writes",
        "first: was refused: token 2 was there before",
        "first: lost its lease: the outbox took no result from it",
        "story: in the ledger stands [('second', 2)]",
    ]
    with psycopg.connect(database18) as connection:
        ledger = connection.execute("SELECT written_by, token FROM ledger").fetchall()
        fence = connection.execute("SELECT receiver, token FROM outbox_fence").fetchall()
        message = connection.execute(
            "SELECT status, outcome, lease_version, attempts, reclaim_count, lease_owner FROM outbox"
        ).fetchall()
    assert ledger == [("second", 2)]
    assert fence == [("ledger", 2)]
    assert message == [("done", "delivered", 2, 2, 1, "second")]
