"""The plans at depth where messages are ordered: one hot key beside others, its history, and what is parked.

A planner that knows nothing of a key, or too much, is tempted to walk the primary key (through the history of all
keys) or one of the partial indexes from end to end. None of it may happen, whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fencepost import Claimed
from fencepost.embedded import PostgresServer
from tests.store.databases import migrated_database
from tests.store.rows import OUTBOX, Connection, add, claim, expire, value
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

    def first(self, key: str | None) -> None:
        """Within the caller's transaction, let the messages of a key be due before all others."""
        self.connection.execute(
            "UPDATE outbox SET available_at = '2020-01-01' WHERE id IN (SELECT id FROM outbox"
            " WHERE queue = 'default' AND done_at IS NULL AND status = 'pending'"
            " AND CASE WHEN %(key)s::text IS NULL THEN ordering_key IS NULL ELSE ordering_key LIKE %(key)s END"
            " ORDER BY id LIMIT 500)",
            {"key": key},
        )


class Measured:
    """What a plan touched."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.shown = "\n".join(
            " ".join(f"{key}={node[key]}" for key in SHOWN if key in node) for node in nodes(plan)
        )
        self._plan = plan
        written = [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
        rows = {node.get("Subplan Name", ""): int(node["Actual Rows"]) for node in written}
        self.parked, self.claimed = rows.get("CTE parked", 0), rows.get("CTE taken", 0)

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
        self.check_rows(rows)
        for node in nodes(self._plan):
            if "Sort" in node["Node Type"] and node["Actual Loops"]:
                assert node["Plans"][0]["Actual Rows"] <= rows, self.shown
        assert self._plan["Shared Hit Blocks"] + self._plan["Shared Read Blocks"] <= buffers, self.shown

    def check_rows(self, rows: int) -> None:
        """Count what the scans of the outbox read, taken or not."""
        touched = sum(
            node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
            for node in nodes(self._plan)
            if node.get("Relation Name") == "outbox" and "Scan" in node["Node Type"]
        )
        assert touched <= rows, self.shown


@pytest.fixture(scope="module", params=STATISTICS)
def deep(request: pytest.FixtureRequest, postgres18: PostgresServer) -> Iterator[Deep]:
    with migrated_database(postgres18) as migrated:
        made = Deep(migrated.janitor, request.param)
        made.build()
        yield made


TERMS = {"queue": "default", "owner": "w", "lease": 60.0, "max_attempts": 12, "is_probe": False}
CLAIM = TERMS | {
    "batch": BATCH, "floor": 0, "park": PARK, "park_behind_leased": True, "longest_run": 100_000,
}  # fmt: skip


def closing(held: Sequence[Claimed]) -> dict[str, Any]:
    """The parameters that close what is held as delivered."""
    return {
        "ids": [each.id for each in held],
        "tokens": [each.token for each in held],
        "message_ids": "{" + ",".join(each.message.message_id_text for each in held) + "}",
        "outcomes": ["delivered"] * len(held),
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_of_a_run(deep: Deep, mode: str) -> None:
    """A hundred candidates, the run of a hundred and a quarter more, each read, locked and written."""
    with deep.connection.transaction(force_rollback=True):
        deep.first("hot")
        measured = deep.explain("claim", CLAIM, mode)
    measured.check(rows=5 * BATCH, buffers=3_000)
    assert measured.claimed == BATCH


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_of_many_keys(deep: Deep, mode: str) -> None:
    """The heads of a hundred keys, each found by the order index."""
    with deep.connection.transaction(force_rollback=True):
        deep.first("other%")
        measured = deep.explain("claim", CLAIM, mode)
    measured.check(rows=5 * BATCH, buffers=3_000)
    assert measured.claimed == BATCH


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_that_parks_behind_a_head_that_is_being_published(deep: Deep, mode: str) -> None:
    with deep.connection.transaction(force_rollback=True):
        deep.first("leased")
        measured = deep.explain("claim", CLAIM, mode)
    # Each parked row gets new entries in the indexes.
    measured.check(rows=2 * PARK + 5 * BATCH, buffers=25_000)
    assert measured.parked == PARK + BATCH


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_that_leaves_a_deep_key_alone(deep: Deep, mode: str) -> None:
    with deep.connection.transaction(force_rollback=True):
        deep.first("leased")
        measured = deep.explain("claim", CLAIM | {"park_behind_leased": False}, mode)
    measured.check(rows=5 * BATCH, buffers=3_000)
    assert (measured.claimed, measured.parked) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_that_meets_newcomers_behind_a_hundred_thousand_parked_ones(deep: Deep, mode: str) -> None:
    """They are parked without a look at those that are parked already."""
    with deep.connection.transaction(force_rollback=True):
        deep.connection.execute(BACKLOG, ["dead", False, 300])
        deep.first("dead")
        measured = deep.explain("claim", CLAIM, mode)
    measured.check(rows=2 * 300 + 5 * BATCH, buffers=8_000)
    assert measured.parked == 300


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_of_a_promoted_head_takes_parked_ones_along(deep: Deep, mode: str) -> None:
    with deep.connection.transaction(force_rollback=True):
        dead = value(deep.connection, "SELECT id FROM outbox WHERE ordering_key = 'dead' AND status = 'dead'")
        OUTBOX.skip_dead(deep.connection, [dead], actor="ann")
        measured = deep.explain("claim", CLAIM | {"park_behind_leased": False}, mode)
    measured.check(rows=5 * BATCH, buffers=3_000)
    # A quarter of a batch is for what is parked; the other key that is due has the half of it.
    assert measured.claimed == 1 + BATCH // 4 // 2


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_of_unordered_messages_beside_deep_keys(deep: Deep, mode: str) -> None:
    with deep.connection.transaction(force_rollback=True):
        deep.first(None)
        measured = deep.explain("claim", CLAIM, mode)
    measured.check(rows=2 * BATCH, buffers=1_500)
    assert measured.claimed == BATCH


@pytest.mark.parametrize("mode", MODES)
def test_closing_and_promoting(deep: Deep, mode: str) -> None:
    held = closing(deep.held)
    deep.explain("mark_done_ordered", held, mode).check(rows=3 * len(deep.held), buffers=1_500)
    keys = {"queues": ["default"] * 3, "keys": ["dead", "hot", "leased"]}
    deep.explain("promote", keys, mode).check(rows=3, buffers=50)
    dead = value(deep.connection, "SELECT id FROM outbox WHERE ordering_key = 'dead' AND status = 'dead'")
    deep.explain("dead_keys", {"ids": [dead]}, mode).check(rows=1, buffers=10)
    with deep.connection.transaction(force_rollback=True):
        OUTBOX.skip_dead(deep.connection, [dead], actor="ann")
        # And one that has a parked row to promote.
        deep.connection.execute(
            "UPDATE outbox SET status = 'blocked', available_at = '9999-12-31 00:00+00'"
            " WHERE ordering_key = 'dead' AND status = 'pending'"
        )
        deep.explain("promote", keys, mode).check(rows=5, buffers=100)


@pytest.mark.parametrize("mode", MODES)
def test_suspects_of_a_deep_key(deep: Deep, mode: str) -> None:
    """Their turn is told by one look at the head of their key, each."""
    window = 10_000
    params = TERMS | {"batch": 1, "window": window, "max_reclaims": 2**31 - 1, "spare_attempts": 0}
    with deep.connection.transaction(force_rollback=True):
        expire(deep.connection)
        deep.explain("claim_suspects", params, mode).check(
            rows=window + len(deep.held) + 2, buffers=window + 10 * len(deep.held)
        )


def test_the_test_would_see_a_walk_along_the_primary_key(deep: Deep) -> None:
    plan = explained(
        deep.connection,
        "SELECT id FROM outbox WHERE id > %(after)s::bigint AND ordering_key = 'hot' AND status <> 'done'"
        " ORDER BY id LIMIT 1",
        {"after": 0},
        "custom",
    )
    with pytest.raises(AssertionError):
        Measured(plan).check(rows=5 * BATCH, buffers=3_000)


# --- statistics from a time when all of it was open ------------------------------------------------------------

HEADS = """
SELECT o.id
FROM unnest(%(keys)s::text[]) AS k (ordering_key)
CROSS JOIN LATERAL (
    SELECT id FROM outbox
    WHERE queue = 'default' AND ordering_key = k.ordering_key AND ordering_key IS NOT NULL AND done_at IS NULL
    ORDER BY id LIMIT 1
) AS o
"""
"""The heads of keys as one would write it: the order of one key's rows is that of the primary key, too."""


@pytest.fixture(scope="module")
def outdated(postgres18: PostgresServer) -> Iterator[Connection]:
    """One hot key whose whole backlog was analyzed and is done by now, and a new backlog behind it."""
    with migrated_database(postgres18) as migrated:
        db = migrated.janitor
        db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        db.execute(BACKLOG, ["hot", False, HOT])
        db.execute("VACUUM ANALYZE outbox")
        db.execute(
            "UPDATE outbox SET status = 'done', outcome = 'delivered', done_at = now(), attempts = 1,"
            " lease_version = 1"
        )
        db.execute(BACKLOG, ["hot", False, 2_000])
        # The entries of what is done leave the partial indexes with the next scan that meets them.
        for _ in range(2):
            db.execute("SELECT count(*) FROM outbox WHERE queue = 'default' AND done_at IS NULL")
        yield db


@pytest.mark.parametrize("mode", MODES)
def test_no_statement_walks_the_primary_key_as_statistics_are_out_of_date(outdated: Connection, mode: str) -> None:
    deep = Deep(outdated, "outdated")
    measured = deep.explain("claim", CLAIM, mode)
    assert measured.claimed == BATCH
    measured.check_rows(5 * BATCH)
    deep.explain("promote", {"queues": ["default"], "keys": ["hot"]}, mode).check_rows(2)
    with outdated.transaction(force_rollback=True):
        held = claim(outdated, batch=BATCH)
        params = closing(held)
        deep.explain("mark_done_ordered", params, mode).check_rows(3 * BATCH)
        expire(outdated)
        window = {"batch": 1, "window": 10_000, "max_reclaims": 2**31 - 1, "spare_attempts": 0}
        deep.explain("claim_suspects", TERMS | window, mode).check_rows(2_000 + BATCH + 2)


@pytest.mark.parametrize("mode", MODES)
def test_the_plain_form_does(outdated: Connection, mode: str) -> None:
    plan = explained(outdated, HEADS, {"keys": ["hot"]}, mode)
    assert max(node.get("Rows Removed by Filter", 0) for node in nodes(plan)) >= HOT
