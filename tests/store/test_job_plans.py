"""The plans of job statements at depth: each goes through an index and touches a bounded number of rows.

As in `tests.store.test_plans`: the history and the backlog are built once, then the same statements are explained
with and without statistics, under plans made for the values and under generic ones. The session is as a worker's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from fencepost.core.operation import Operation
from fencepost.embedded import PostgresServer
from fencepost.runtime.link import Limits
from fencepost.store import job_fenced
from tests.store.databases import migrated_database
from tests.store.job_rows import CATALOG, TERMS, add_jobs, claim_jobs, do, expire_jobs
from tests.store.rows import Connection
from tests.store.test_plans import Bound, explained, nodes

DONE, FAILED, QUEUED, HOT, LANES = 150_000, 20_000, 50_000, 20_000, 300
LEASED, EXPIRED, SUSPECTS = 300, 50, 60

HISTORY = """
INSERT INTO outbox_job (task, status, outcome, attempts, fence, finished_at)
SELECT 'plain', %(status)s, %(outcome)s, 1, 1, now() - interval '9 days' + n * interval '1 ms'
FROM generate_series(1, %(many)s) n
"""
BACKLOG = """
INSERT INTO outbox_job (task, lane, reclaim_count, available_at)
SELECT %(task)s, %(lane)s, %(reclaims)s, now() - interval '1 hour' + n * interval '1 ms'
FROM generate_series(1, %(many)s) n
"""
MANY_LANES = """
INSERT INTO outbox_job (task, lane) SELECT 'keyed', 'key ' || n FROM generate_series(1, %s) n
"""

STATES = ["never analyzed", "analyzed"]


@dataclass
class Deep:
    """A database with a history and a backlog of jobs, and what is held of them."""

    connection: Connection
    is_analyzed: bool = False
    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def build(self) -> None:
        db = self.connection
        db.execute("ALTER TABLE outbox_job SET (autovacuum_enabled = off)")
        db.execute(HISTORY, {"status": "done", "outcome": "completed", "many": DONE})
        db.execute(HISTORY, {"status": "failed", "outcome": "exhausted", "many": FAILED})
        db.execute(BACKLOG, {"task": "plain", "lane": None, "reclaims": 0, "many": QUEUED})
        db.execute(BACKLOG, {"task": "keyed", "lane": "hot", "reclaims": 0, "many": HOT})
        db.execute(BACKLOG, {"task": "plain", "lane": None, "reclaims": 2, "many": SUSPECTS})
        db.execute(MANY_LANES, [LANES])
        held = claim_jobs(db, batch=LEASED)
        expire_jobs(db, [each.id for each in held[-EXPIRED:]])
        self.ids = [each.id for each in held[:100]]
        self.tokens = [each.token for each in held[:100]]


@pytest.fixture(scope="module")
def database_of_depth(postgres18: PostgresServer) -> Iterator[Deep]:
    with migrated_database(postgres18) as migrated:
        made = Deep(migrated.janitor)
        made.build()
        yield made


@pytest.fixture(scope="module", params=STATES)
def deep(request: pytest.FixtureRequest, database_of_depth: Deep) -> Deep:
    """The deep database without and with statistics."""
    if request.param == "analyzed":
        database_of_depth.connection.execute("VACUUM ANALYZE public.outbox_job")
    do(database_of_depth.connection, _session())
    return database_of_depth


def _session() -> Operation[None]:
    yield Limits.below(timedelta(seconds=60)).statement_for(CATALOG, local=False)


CLAIM: dict[str, Any] = TERMS.params() | {"queue": "default", "batch": 100}
LANES_OF: dict[str, Any] = CLAIM | TERMS.lane_params()
WALK = {"after_task": "", "after_lane": "", "lanes": 500}
FINALIZE = Bound(rows=200, buffers=2_500)

BOUNDS: dict[str, tuple[dict[str, Any], Bound]] = {
    "job_look": ({"queues": ["default", "other"]}, Bound(rows=10, buffers=60)),
    "job_queues": ({"limit": 1_000}, Bound(rows=10, buffers=60)),
    "job_claim": (CLAIM, Bound(rows=200, buffers=2_500)),
    # (What is leased is read as a whole, to count what runs in lanes.)
    "job_claim_lanes": (LANES_OF | WALK, Bound(rows=3 * LANES + LEASED + 300, buffers=8_000, sorted=LANES + 1)),
    "job_claim_suspects": (
        LANES_OF | {"batch": 1, "max_reclaims": 10, "spare_attempts": 0},
        Bound(rows=LEASED + 10, buffers=600, sorted=1),
    ),
    "job_heartbeat": ({"lease": 60.0, "progress": [None] * 100}, Bound(rows=200, buffers=2_500, sorted=100)),
    "job_held": ({}, FINALIZE),
    "job_lock": ({}, FINALIZE),
    "job_done": ({"results": [None] * 100}, FINALIZE),
    "job_requeue": ({"refunds": [True] * 100, "delays": [1.0] * 100, "errors": ["x"] * 100}, FINALIZE),
    "job_fail": ({"outcomes": ["permanent"] * 100, "errors": ["x"] * 100}, FINALIZE),
    "job_finalized": ({"status": "done", "outcomes": ["completed"] * 100}, FINALIZE),
    "job_reclaim": ({"limit": 10}, Bound(rows=LEASED + 30, buffers=800, sorted=LEASED)),
    "job_purge": ({"older_than": 86_400.0, "limit": 100}, Bound(rows=200, buffers=2_500)),
    "job_unique_find": ({"task": "plain", "unique_key": "k", "args": "{}"}, Bound(rows=0, buffers=20)),
}


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_statement_touches_a_bounded_number_of_rows_through_an_index(deep: Deep, name: str, mode: str) -> None:
    params, bound = BOUNDS[name]
    statement = CATALOG.statement(name)
    if "%(ids)s" in statement.sql:
        params = params | {"ids": deep.ids, "tokens": deep.tokens}
    plan = explained(deep.connection, statement.sql, params, mode)
    shown = "\n".join(" ".join(f"{key}={node[key]}" for key in SHOWN if key in node) for node in nodes(plan))
    scans = [
        node for node in nodes(plan) if node.get("Relation Name") == "outbox_job" and "Scan" in node["Node Type"]
    ]
    scans += [node for node in nodes(plan) if "Index Name" in node and node not in scans]
    assert scans, shown
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"], shown
    touched = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
    )
    assert touched <= bound.rows, shown
    for node in nodes(plan):
        if "Sort" in node["Node Type"]:
            assert node["Plans"][0]["Actual Rows"] <= bound.sorted, shown
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= bound.buffers, shown


SHOWN = ["Node Type", "Index Name", "Actual Rows", "Actual Loops", "Rows Removed by Filter", "Shared Hit Blocks"]


def test_heartbeats_are_heap_only_updates(db: Connection) -> None:
    """A long job has many of them, and none may cost an entry in an index."""
    add_jobs(db, 50)
    held = claim_jobs(db)
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'outbox_job'"
    rounds = []
    for _ in range(10):
        with db.transaction():
            before = db.execute(counted).fetchone() or (0, 0)
            assert do(db, job_fenced.heartbeat(CATALOG, held, timedelta(seconds=60))) == frozenset()
            after = db.execute(counted).fetchone() or (0, 0)
        rounds.append((after[0] - before[0], after[1] - before[1]))
    assert [updates for updates, _ in rounds] == [50] * 10
    assert [heap_only for _, heap_only in rounds[2:]] == [50] * 8  # a page may be full at first
