"""The plans at depth: every statement of a dispatcher goes through an index and touches a bounded number of rows.

The history and the backlog are built once; then the same statements are explained at each state of the
statistics, under the plans that the planner makes for the values and under the generic ones that a prepared
statement may get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from psycopg import sql

from fencepost import Outbox
from fencepost.drivers.parameters import numbered
from fencepost.embedded import PostgresServer
from tests.store.databases import migrated_database
from tests.store.rows import OUTBOX, Connection, add, claim, expire, value

DONE, PENDING, MORE_PENDING = 250_000, 50_000, 200_000
LEASED, EXPIRED = 300, 50
WINDOW = 10_000

HISTORY = """
INSERT INTO outbox (event_type, payload, created_at, available_at, status, outcome, attempts, lease_version,
                    done_at)
SELECT 'old', json_build_object('n', n, 'pad', repeat('x', 100)), at, at, 'done', 'delivered', 1, 1, at
FROM generate_series(1, %s) n, LATERAL (SELECT now() - interval '9 days' + n * interval '1 ms') AS t (at)
"""
BACKLOG = """
INSERT INTO outbox (event_type, payload, created_at, available_at)
SELECT 'new', json_build_object('n', n, 'pad', repeat('x', 100)), at, at
FROM generate_series(1, %s) n, LATERAL (SELECT now() - %s * interval '1 hour' + n * interval '1 ms') AS t (at)
"""

STATES = [
    "never analyzed",
    "analyzed",
    "five times the backlog, old statistics",
    "five times the backlog, analyzed",
]


@dataclass
class Deep:
    """A database with a history and a backlog, and how far it has been built."""

    connection: Connection
    reached: int = 0
    held: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)

    def reach(self, state: str) -> None:
        for step in (self._build, self._analyze, self._grow, self._analyze)[
            self.reached : STATES.index(state) + 1
        ]:
            step()
            self.reached += 1

    def _build(self) -> None:
        # Statistics change when a test says so.
        self.connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        self.connection.execute(HISTORY, [DONE])
        self.connection.execute(BACKLOG, [PENDING, 2])
        ids = [each.id for each in claim(self.connection, outbox=Outbox(), batch=LEASED)]
        self.held, self.expired = ids[:-EXPIRED], ids[-EXPIRED:]
        expire(self.connection, self.expired)

    def _analyze(self) -> None:
        self.connection.execute("VACUUM ANALYZE outbox")

    def _grow(self) -> None:
        self.connection.execute(BACKLOG, [MORE_PENDING, 1])


@pytest.fixture(scope="module")
def database_of_depth(postgres18: PostgresServer) -> Iterator[Deep]:
    with migrated_database(postgres18) as migrated:
        yield Deep(migrated.janitor)


@pytest.fixture(scope="module", params=STATES)
def deep(request: pytest.FixtureRequest, database_of_depth: Deep) -> Deep:
    """The deep database at each of its states."""
    database_of_depth.reach(request.param)
    return database_of_depth


@dataclass(frozen=True)
class Bound:
    """What a statement may touch, whatever the depth."""

    rows: int
    buffers: int
    sorted: int = 0


TERMS = {"queue": "default", "owner": "w", "lease": 60.0, "max_attempts": 12, "is_probe": False}
CLAIM = {"floor": 0, "park": 1_000, "park_behind_leased": True, "longest_run": 100_000}
FINALIZE = Bound(rows=100, buffers=1_500)

BOUNDS: dict[str, tuple[dict[str, Any], Bound]] = {
    "claim": (TERMS | CLAIM | {"batch": 100}, Bound(rows=LEASED + 2 * 100, buffers=1_000)),
    "claim_suspects": (
        TERMS | {"batch": 1, "window": WINDOW, "max_reclaims": 2**31 - 1, "spare_attempts": 0},
        Bound(rows=WINDOW + 2 * EXPIRED, buffers=1_500, sorted=EXPIRED),
    ),
    "reap": (
        {"queue": "default", "window": WINDOW, "max_attempts": 1, "limit": 10},
        # The rows that leave for the far end get new entries in the index.
        Bound(rows=WINDOW + 2 * 10, buffers=1_500, sorted=10),
    ),
    "queues": ({"after": "", "limit": 1_000}, Bound(rows=3, buffers=20)),
    "mark_done": ({}, FINALIZE),
    "reschedule": ({"delays": [1.0] * 100, "errors": ["x"] * 100, "refund_attempt": False}, FINALIZE),
    "mark_dead": ({"errors": ["x"] * 100, "outcome": "permanent"}, FINALIZE),
    "release": ({"refund_attempt": True}, FINALIZE),
    "finalized": ({"status": "done", "outcome": "delivered"}, FINALIZE),
    "held": ({}, FINALIZE),
    "heartbeat": ({"lease": 60.0}, Bound(rows=2 * 100, buffers=1_500, sorted=100)),
    "purge": (
        {"table": "outbox", "older_than": 86_400.0, "after": 0, "window": 2_000, "limit": 1_000},
        Bound(rows=2_000 + 2 * 1_000, buffers=8_000, sorted=1_000),
    ),
    "dead_list": ({"queue": None, "outcome": None, "after": 0, "limit": 100}, Bound(rows=0, buffers=1_000)),
    "dead_retry": ({"actor": "a", "reason": None}, Bound(rows=100, buffers=1_000, sorted=100)),
    "enqueue_duplicate": (
        {"queue": "default", "dedupe_key": "k", "event_type": "e", "payload": "1", "payload_bytes": None},
        Bound(rows=0, buffers=20),
    ),
}


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_statement_touches_a_bounded_number_of_rows_through_an_index(deep: Deep, name: str, mode: str) -> None:
    params, bound = BOUNDS[name]
    statement = OUTBOX.catalog.statement(name)
    if "%(ids)s" in statement.sql:
        params = {**params, "ids": deep.held[:100]}
    if "%(token)s" in statement.sql:
        names = "SELECT array_agg(message_id ORDER BY id)::text FROM outbox WHERE id = ANY (%s)"
        held = deep.connection.execute(names, [params["ids"]]).fetchone()
        assert held is not None
        params = {"outcome": "delivered", **params, "token": 1, "message_ids": held[0]}
    plan = explained(deep.connection, statement.sql, params, mode)
    shown = "\n".join(" ".join(f"{key}={node[key]}" for key in SHOWN if key in node) for node in nodes(plan))
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "outbox" and "Scan" in node["Node Type"]]
    assert scans, shown
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"], shown
    indexes = {node["Index Name"] for node in nodes(plan) if "Index Name" in node}
    assert indexes <= {"outbox_ready", "outbox_order", "outbox_pkey", "outbox_dedupe", "outbox_queue_pkey"}, shown
    # Nothing is read from one end of an index to the other.
    assert all("Index Cond" in node for node in nodes(plan) if "Index Name" in node), shown
    touched = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
    )
    assert touched <= bound.rows, shown
    for node in nodes(plan):
        if "Sort" in node["Node Type"]:
            assert node["Plans"][0]["Actual Rows"] <= bound.sorted, shown
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= bound.buffers, shown


SHOWN = ["Node Type", "Index Name", "Actual Rows", "Actual Loops", "Rows Removed by Filter", "Shared Hit Blocks"]


def explained(connection: Connection, text: str, params: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Run a statement under a kind of plan, roll it back, and return its plan with what it really did."""
    prepared, values = numbered(text, params)
    arguments = sql.SQL(", ").join(sql.Literal(each) for each in values)
    call = sql.SQL("s({})").format(arguments) if values else sql.SQL("s")
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
        connection.execute(f"PREPARE s AS {prepared}".encode())
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {}").format(call)
        plan = connection.execute(explain).fetchone()
        connection.execute("DEALLOCATE s")
    assert plan is not None
    found: dict[str, Any] = plan[0][0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def test_the_test_would_see_a_bad_plan(database_of_depth: Deep) -> None:
    """The textbook claim, which walks the primary key through the whole history."""
    database_of_depth.reach(STATES[0])
    plan = explained(
        database_of_depth.connection,
        "SELECT id FROM outbox WHERE status = 'pending' OR lease_until < now() ORDER BY id LIMIT %(batch)s::int",
        {"batch": 100},
        "custom",
    )
    removed = sum(node.get("Rows Removed by Filter", 0) for node in nodes(plan))
    assert removed >= DONE


# --- exact under any plan --------------------------------------------------------------------------------

SWITCHES = [
    "nestloop",
    "hashjoin",
    "mergejoin",
    "seqscan",
    "indexscan",
    "indexonlyscan",
    "bitmapscan",
    "sort",
    "hashagg",
    "material",
    "memoize",
]
ONLY = {
    "as planned": [],
    **{f"no {switch}": [switch] for switch in SWITCHES},
    "nested loops only": ["hashjoin", "mergejoin"],
    "hash joins only": ["nestloop", "mergejoin"],
    "merge joins only": ["nestloop", "hashjoin"],
    "sequential scans only": ["indexscan", "indexonlyscan", "bitmapscan"],
    "bitmap scans only": ["seqscan", "indexscan", "indexonlyscan"],
}


@contextmanager
def planner(connection: Connection, switched_off: list[str]) -> Iterator[None]:
    connection.execute("SET jit = off")  # a forbidden plan looks so expensive that it would be compiled
    for switch in switched_off:
        connection.execute(f"SET enable_{switch} = off")
    try:
        yield
    finally:
        for switch in switched_off:
            connection.execute(f"RESET enable_{switch}")


def test_every_step_is_exact_under_any_plan(db: Connection) -> None:
    add(db, 400)
    db.execute("ANALYZE outbox")
    rows = "FROM outbox WHERE status ="
    for name, switched_off in ONLY.items():
        with planner(db, switched_off), db.transaction(force_rollback=True):
            held = Outbox().claim(db, owner="w", batch=37)
            assert len(held) == 37, name
            assert value(db, f"SELECT count(*) {rows} 'processing'") == 37, name
            assert OUTBOX.heartbeat(db, held) == [], name
            assert OUTBOX.mark_done(db, held[:20]) == [], name
            assert value(db, f"SELECT count(*) {rows} 'done'") == 20, name
            expire(db)
            assert len(Outbox().claim(db, owner="w", batch=37)) == 1, name
            assert OUTBOX.reap(db, max_attempts=1, limit=5) == 5, name
            assert value(db, f"SELECT count(*) {rows} 'dead'") == 5, name
            dead = [each.message.id for each in OUTBOX.list_dead(db)]
            assert OUTBOX.retry_dead(db, dead[:2], actor="a") == dead[:2], name
            assert OUTBOX.skip_dead(db, dead[2:4], actor="a") == dead[2:4], name
            assert OUTBOX.purge(db, older_than=timedelta(days=1), limit=7) == 0, name
            db.execute(
                "UPDATE outbox SET created_at = now() - interval '2 days', done_at = done_at - interval '2 days'"
            )
            assert OUTBOX.purge(db, older_than=timedelta(days=1), limit=7) == 7, name
            assert value(db, "SELECT count(*) FROM outbox") == 393, name


# --- heap-only updates -----------------------------------------------------------------------------------


@contextmanager
def counted(db: Connection, updates: int, heap_only: int) -> Iterator[None]:
    """A transaction that makes so many updates, so many of them heap-only."""
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'outbox'"
    with db.transaction():
        before = db.execute(query).fetchone() or (0, 0)
        yield
        after = db.execute(query).fetchone() or (0, 0)
        assert (after[0] - before[0], after[1] - before[1]) == (updates, heap_only)


def test_claims_and_heartbeats_are_heap_only_updates(db: Connection) -> None:
    db.execute(BACKLOG, [1_000, 1])
    owner = "host-17.example.internal:31415:9f3a"
    for _ in range(5):
        with counted(db, 100, 100):
            held = Outbox().claim(db, owner=owner, batch=100)
    for _ in range(10):
        with counted(db, 100, 100):
            assert OUTBOX.heartbeat(db, held) == []
    expire(db)
    outbox = Outbox()
    for _ in range(3):
        with counted(db, 1, 1):
            assert [each.reclaim_count for each in outbox.claim(db, owner=owner, batch=1)] == [1]
        with counted(db, 1, 1):
            assert [each.reclaim_count for each in outbox.claim(db, owner=owner, batch=1)] == [0]


def test_the_count_would_see_an_update_that_touches_an_index(db: Connection) -> None:
    db.execute(BACKLOG, [10, 1])
    held = claim(db)
    with counted(db, 10, 0):
        assert OUTBOX.mark_done(db, held) == []
