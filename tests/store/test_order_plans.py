"""The plans at depth where messages are ordered: one hot key beside others, its history, and what is parked.

A planner that knows nothing of a key, or too much, is tempted to walk the primary key (through the history of all
keys) or one of the partial indexes from end to end. None of it may happen, whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fencepost import Claimed
from fencepost.embedded import PostgresServer
from tests.store.databases import migrated_database
from tests.store.rows import OUTBOX, Connection, add, claim
from tests.store.test_plans import SHOWN, explained, nodes

DONE, HOT, OTHERS, UNORDERED = 250_000, 100_000, 5_000, 1_000
BATCH, PARK = 100, 1_000

HISTORY = """
INSERT INTO outbox (event_type, payload, created_at, available_at, status, outcome, attempts, lease_version,
                    done_at, ordering_key)
SELECT 'old', '{}', at, at, 'done', 'delivered', 1, 1, at,
       CASE WHEN n %% 10 = 0 THEN 'cold' || n %% 5000 ELSE 'hot' END
FROM generate_series(1, %s) n, LATERAL (SELECT now() - interval '9 days' + n * interval '1 ms') AS t (at)
"""
BACKLOG = """
INSERT INTO outbox (event_type, payload, created_at, available_at, ordering_key)
SELECT 'new', '{}', at, at, %s || CASE WHEN %s THEN n::text ELSE '' END
FROM generate_series(1, %s) n, LATERAL (SELECT now() - interval '1 hour' + n * interval '1 ms') AS t (at)
"""
PARKED = """
INSERT INTO outbox (event_type, payload, created_at, available_at, status, ordering_key)
SELECT 'new', '{}', now() - interval '2 hours', '9999-12-31 00:00:00+00', 'blocked', %s
FROM generate_series(1, %s)
"""

STATISTICS = ["never analyzed", "of the history only", "fresh"]
MODES = ["custom", "generic"]


@dataclass
class Deep:
    """A table with three deep keys: one ready, one that is being published, one parked behind a dead head."""

    connection: Connection
    statistics: str
    held: list[Claimed] = field(default_factory=list)

    def build(self) -> None:
        db = self.connection
        db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        db.execute(HISTORY, [DONE])
        if self.statistics == "of the history only":
            db.execute("VACUUM ANALYZE outbox")
        add(db, ordering_key="dead")
        OUTBOX.mark_dead(db, claim(db), error="x")
        db.execute(PARKED, ["dead", HOT])
        add(db, 50, ordering_key="leased")
        self.held = claim(db, batch=50)
        db.execute(BACKLOG, ["leased", False, HOT])
        db.execute(BACKLOG, ["hot", False, HOT])
        db.execute(BACKLOG, ["other", True, OTHERS])
        db.execute(BACKLOG, [None, False, UNORDERED])
        if self.statistics == "fresh":
            db.execute("VACUUM ANALYZE outbox")

    def explain(self, name: str, params: dict[str, Any], mode: str) -> Measured:
        return Measured(explained(self.connection, OUTBOX.catalog.statement(name).sql, params, mode))

    def only(self, key: str) -> None:
        """Within the caller's transaction, make other keys wait, so that a claim comes to this one."""
        self.connection.execute(
            "UPDATE outbox SET available_at = '2020-01-01' WHERE id IN (SELECT id FROM outbox"
            " WHERE queue = 'default' AND done_at IS NULL AND status = 'pending' AND ordering_key = %s"
            " ORDER BY id LIMIT 500)",
            [key],
        )


class Measured:
    """What a plan touched."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.shown = "\n".join(
            " ".join(f"{key}={node[key]}" for key in SHOWN if key in node) for node in nodes(plan)
        )
        self._plan = plan

    def check(self, *, rows: int, buffers: int) -> None:
        scans = [
            node
            for node in nodes(self._plan)
            if node.get("Relation Name") == "outbox" and "Scan" in node["Node Type"]
        ]
        assert scans
        assert not [node for node in scans if node["Node Type"] == "Seq Scan"], self.shown
        indexes = [node for node in nodes(self._plan) if "Index Name" in node]
        assert all("Index Cond" in node for node in indexes), self.shown
        touched = sum(
            node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
        )
        assert touched <= rows, self.shown
        for node in nodes(self._plan):
            if "Sort" in node["Node Type"] and node["Actual Loops"]:
                assert node["Plans"][0]["Actual Rows"] <= rows, self.shown
        assert self._plan["Shared Hit Blocks"] + self._plan["Shared Read Blocks"] <= buffers, self.shown


@pytest.fixture(scope="module", params=STATISTICS)
def deep(request: pytest.FixtureRequest, postgres18: PostgresServer) -> Iterator[Deep]:
    with migrated_database(postgres18) as migrated:
        made = Deep(migrated.janitor, request.param)
        made.build()
        yield made


TERMS = {"queue": "default", "owner": "w", "lease": 60.0, "max_attempts": 12}
CLAIM = TERMS | {
    "batch": BATCH, "floor": 0, "park": PARK, "park_behind_leased": True, "longest_run": 100_000,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", ["hot", "other", "all"])
def test_a_claim_of_a_run(deep: Deep, mode: str, key: str) -> None:
    with deep.connection.transaction(force_rollback=True):
        if key != "all":
            deep.connection.execute("UPDATE outbox SET lease_until = NULL WHERE false")
            deep.only(key)
        deep.explain("claim", CLAIM, mode).check(rows=100 * BATCH, buffers=20_000)
