"""The outbox in partitions by id: the same life of every message, and history that goes by whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import InvalidMessage, NewMessage, Outbox, SchemaError
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.errors import ConfigError
from fencepost.store import partitions, schema
from fencepost.store.partitions import Partitions
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, expire
from tests.store.test_search_path import HOSTILE

DAY = timedelta(days=1)
SIZE = 1_000
CATALOG = OUTBOX.catalog


@pytest.fixture
def url(database: str) -> str:
    """A database with an outbox in partitions, on each major version in turn."""
    with psycopg.connect(database) as conn:
        OUTBOX.migrate(conn)
        conn.commit()
        change(conn, partitions.convert(CATALOG, size=SIZE))
    return database


@pytest.fixture
def db(url: str) -> Iterator[Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def change(
    conn: Connection, operation: Operation[Any], *, before: str = "", act: Callable[[], object] = lambda: None
) -> Any:
    """Run one operation in a transaction of its own; do something before one of its statements."""

    def execute(statement: Statement) -> Rows:
        if statement.name == before:
            act()
        return driver_for(conn).execute(statement)

    with conn.transaction():
        return run(operation, execute)


def shown(conn: Connection) -> Partitions:
    return run(partitions.partitions(CATALOG), driver_for(conn).execute)


def names(conn: Connection) -> list[str]:
    return [each.name for each in shown(conn).ranges]


def skip_to(conn: Connection, next_id: int) -> None:
    """Draw ids up to this one."""
    conn.execute("SELECT setval('outbox_id_seq', %s)", [next_id - 1])


def old(conn: Connection, ids: list[int] | None = None) -> None:
    """Let messages have been done two days ago."""
    conn.execute(
        "UPDATE outbox SET created_at = now() - interval '3 days', done_at = now() - interval '2 days'"
        " WHERE done_at IS NOT NULL AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))",
        {"ids": ids},
    )


# --- making it -------------------------------------------------------------------------------------------


def test_an_empty_outbox_becomes_one_in_partitions_and_the_schema_is_in_order(db: Connection) -> None:
    assert names(db) == ["outbox_p0", "outbox_p1000", "outbox_p2000"]
    assert OUTBOX.check_schema(db) == []
    with db.transaction():
        assert OUTBOX.migrate(db) == []
    found = shown(db)
    assert (found.ahead, found.last_id, found.default_is_empty) == (2, 0, True)
    assert found.default is not None
    assert found.default.name == "outbox_default"


def test_its_definition_is_that_of_one_table_but_for_the_dedupe_keys(db: Connection) -> None:
    flat = Outbox(schema_name="flat")
    with db.transaction():
        flat.migrate(db)
    columns = (
        "SELECT attname, atttypid, attnotnull, attcollation FROM pg_attribute WHERE attnum > 0 AND attrelid = "
    )
    checks = (
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype IN ('c', 'p') AND conrelid = "
    )
    indexes = (
        "SELECT replace(replace(pg_get_indexdef(indexrelid), 'flat.', ''), 'public.', '')"
        " FROM pg_index WHERE indrelid = "
    )

    def of(query: str, table: str) -> set[tuple[Any, ...]]:
        found = db.execute(f"{query} '{table}'::regclass".encode()).fetchall()
        # (A constraint that a migration widened holds for every row, though nobody looked at each again.)
        return {
            tuple(str(each).replace(" ON ONLY ", " ON ").removesuffix(" NOT VALID") for each in row)
            for row in found
        }

    assert of(columns, "flat.outbox") == of(columns, "outbox") == of(columns, "outbox_p0")
    assert of(checks, "outbox") - of(checks, "flat.outbox") == {
        (partitions.NO_DEDUPE, "CHECK ((dedupe_key IS NULL))")
    }
    (dedupe,) = of(indexes, "flat.outbox") - of(indexes, "outbox")
    assert "UNIQUE INDEX outbox_dedupe" in dedupe[0]
    assert of(indexes, "outbox") < of(indexes, "flat.outbox")
    options = "SELECT reloptions FROM pg_class WHERE oid = "
    assert of(options, "flat.outbox") == of(options, "outbox_p0") == of(options, "outbox_default")


def test_only_an_empty_outbox_is_divided_and_only_once(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        with pytest.raises(SchemaError, match="run `fencepost migrate`"):
            change(conn, partitions.convert(CATALOG, size=SIZE))
        with conn.transaction():
            OUTBOX.migrate(conn)
        with pytest.raises(SchemaError, match="one table"):
            shown(conn)
        add(conn, 3)
        with pytest.raises(SchemaError, match="only an empty outbox"):
            change(conn, partitions.convert(CATALOG, size=SIZE))
        OUTBOX.mark_done(conn, claim(conn))
        assert OUTBOX.purge(conn, timedelta(0)) == 3
        for size in (999, 10**10):
            with pytest.raises(ConfigError):
                change(conn, partitions.convert(CATALOG, size=size))
        change(conn, partitions.convert(CATALOG, size=SIZE))
        assert add(conn) == [4]  # ids go on: receivers and the audit know the old ones
        with pytest.raises(SchemaError, match="already"):
            change(conn, partitions.convert(CATALOG, size=SIZE))


# --- the life of messages --------------------------------------------------------------------------------


def test_the_whole_life_of_messages_across_partitions(db: Connection) -> None:
    skip_to(db, 996)
    ids = add(db, 10)
    assert ids == list(range(996, 1006))
    held = claim(db, batch=8)
    assert [each.id for each in held] == ids[:8]
    assert OUTBOX.heartbeat(db, held) == []
    assert OUTBOX.mark_done(db, held[:5]) == []
    assert OUTBOX.mark_done(db, held[:5]) == []  # again, as after a lost answer
    assert OUTBOX.reschedule(db, held[5], delay=timedelta(0), error="again") == []
    assert OUTBOX.mark_dead(db, held[6], error="no") == []
    assert OUTBOX.release(db, held[7]) == []
    again = claim(db)
    assert [each.id for each in again] == ids[5:6] + ids[7:]
    expire(db, [ids[8]])
    assert [each.id for each in claim(db, outbox=Outbox())] == [ids[8]]
    assert OUTBOX.mark_done(db, [each for each in again if each.id == ids[8]]) != []  # the fence
    expire(db)
    assert OUTBOX.reap(db, max_attempts=1) == 4
    assert OUTBOX.retry_dead(db, [ids[6]], actor="ann") == [ids[6]]
    assert OUTBOX.skip_dead(db, ids[5:6], actor="ann") == ids[5:6]
    stats = OUTBOX.stats(db)
    assert (stats.done, stats.total("pending"), stats.total("dead")) == (6, 1, 3)
    assert OUTBOX.purge(db, timedelta(0)) == 6


def test_keys_keep_their_order_across_partitions(db: Connection) -> None:
    skip_to(db, 998)
    ids = add(db, 6, ordering_key="k")
    others = add(db, 2, ordering_key="other")
    (first, *_) = claim(db, batch=1)
    assert first.id == ids[0]
    assert {each.id for each in claim(db)} == set(others)  # what waits behind the head is parked
    assert OUTBOX.mark_done(db, first) == []
    run_of_key = claim(db)
    assert [each.id for each in run_of_key] == ids[1:]
    assert OUTBOX.mark_dead(db, run_of_key[0], error="no") == []
    OUTBOX.release(db, run_of_key[1:])
    assert claim(db) == []
    assert OUTBOX.skip_dead(db, [ids[1]], actor="ann") == [ids[1]]
    assert [each.id for each in claim(db)] == ids[2:]


def test_claims_are_exact_and_never_share_a_row(db: Connection, url: str) -> None:
    skip_to(db, 990)
    ids = add(db, 30)
    skip_to(db, 2_500)
    ids += add(db, 10)
    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        first = OUTBOX.claim(one, owner="one", batch=15)
        second = OUTBOX.claim(two, owner="two", batch=15)
        one.commit()
        two.commit()
    third = claim(db)
    assert [len(each) for each in (first, second, third)] == [15, 15, 10]
    assert sorted(each.id for each in [*first, *second, *third]) == ids


def test_dedupe_keys_are_refused_with_the_reason(db: Connection) -> None:
    message = NewMessage(event_type="t", payload=None, dedupe_key="once")
    with pytest.raises(InvalidMessage, match="no unique index spans partitions"), db.transaction():
        OUTBOX.enqueue(db, "t", None, dedupe_key="once")
    with pytest.raises(InvalidMessage, match="no unique index spans partitions"), db.transaction():
        OUTBOX.enqueue_many(db, [message])
    assert all_rows(db) == []


def test_what_runs_ahead_of_the_partitions_is_delivered_all_the_same(db: Connection) -> None:
    skip_to(db, 7_300)
    ids = add(db, 5)
    found = shown(db)
    assert (found.ahead, found.default_is_empty) == (0, False)
    # Where the ids are now, the default partition holds rows already: the next one begins behind that.
    assert change(db, partitions.add_partition(CATALOG)) == "outbox_p8000"
    assert change(db, partitions.add_partition(CATALOG, size=5_000)) == "outbox_p9000"
    assert change(db, partitions.add_partition(CATALOG)) is None
    assert change(db, partitions.add_partition(CATALOG, ahead=3)) == "outbox_p14000"
    held = claim(db)
    assert [each.id for each in held] == ids
    assert OUTBOX.mark_done(db, held) == []
    assert OUTBOX.purge(db, timedelta(0)) == 5
    assert shown(db).default_is_empty


def test_a_partition_that_producers_were_faster_than_is_not_made(db: Connection, url: str) -> None:
    skip_to(db, 7_999)
    with psycopg.connect(url, autocommit=True) as fast:
        operation = partitions.add_partition(CATALOG)
        with pytest.raises(psycopg.errors.CheckViolation):
            change(db, operation, before="partitions/attach", act=lambda: add(fast, 5))  # 7999 to 8003
    assert change(db, partitions.add_partition(CATALOG)) == "outbox_p9000"
    assert len(claim(db)) == 5


# --- dropping --------------------------------------------------------------------------------------------


def deliver(db: Connection, first: int, count: int) -> list[int]:
    skip_to(db, first)
    ids = add(db, count)
    assert OUTBOX.mark_done(db, claim(db, batch=count)) == []
    return ids


def test_partitions_with_nothing_to_keep_are_dropped_one_at_a_time(db: Connection) -> None:
    for first in (990, 1_990, 2_990):
        deliver(db, first, 20)
    add(db, 5)
    old(db)
    db.execute("UPDATE outbox SET done_at = now() WHERE id = 1005")
    dropped = []
    while name := change(db, partitions.drop_partition(CATALOG, older_than=DAY)):
        dropped.append(name)
    assert dropped == ["outbox_p0", "outbox_p2000"]  # the one between has a young message
    assert [each.id for each in all_rows(db)] == [*range(1_000, 1_010), *range(1_990, 2_000), *range(3_000, 3_015)]
    assert OUTBOX.check_schema(db) == []


@pytest.mark.parametrize("status", ["pending", "dead", "processing", "young"])
def test_one_message_that_must_stay_keeps_its_partition(db: Connection, status: str) -> None:
    deliver(db, 2, 5)
    skip_to(db, 999)
    add(db)
    if status == "young":
        held = claim(db)
        OUTBOX.mark_done(db, held)
        old(db)
        db.execute("UPDATE outbox SET done_at = now() - interval '20 hours' WHERE id = %s", [held[0].id])
    else:
        if status != "pending":
            held = claim(db)
        if status == "dead":
            OUTBOX.mark_dead(db, held, error="no")
        old(db)
    assert change(db, partitions.drop_partition(CATALOG, older_than=DAY)) is None
    assert len(all_rows(db)) == 6
    assert OUTBOX.purge(db, DAY) == 5  # row by row as ever


@pytest.mark.parametrize("status", ["pending", "dead"])
def test_a_partition_that_must_stay_holds_up_none_behind_it(db: Connection, status: str) -> None:
    for first in (990, 1_990):
        deliver(db, first, 20)
    old(db)
    skip_to(db, 5)
    add(db)
    skip_to(db, 2_010)
    if status == "dead":
        OUTBOX.mark_dead(db, claim(db), error="no")
    assert change(db, partitions.drop_partition(CATALOG, older_than=DAY)) == "outbox_p1000"
    assert names(db)[0] == "outbox_p0"


def test_a_partition_that_is_still_written_stays(db: Connection) -> None:
    deliver(db, 2, 5)
    old(db)
    assert change(db, partitions.drop_partition(CATALOG, older_than=DAY)) is None
    skip_to(db, 999)
    add(db)
    OUTBOX.mark_done(db, claim(db))
    old(db)
    assert change(db, partitions.drop_partition(CATALOG, older_than=DAY)) == "outbox_p0"
    assert names(db) == ["outbox_p1000", "outbox_p2000"]
    assert change(db, partitions.drop_partition(CATALOG, older_than=DAY)) is None
    assert OUTBOX.check_schema(db) == []


def test_who_drew_an_id_long_ago_and_has_not_committed_keeps_the_partition(db: Connection, url: str) -> None:
    with psycopg.connect(url) as slow:
        (row_id,) = [OUTBOX.enqueue(slow, "slow", None).id]
        deliver(db, 999, 1)
        old(db)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            change(db, partitions.drop_partition(CATALOG, older_than=DAY))
        # It commits while we wait for it: then its message is seen.
        operation = partitions.drop_partition(CATALOG, older_than=DAY)
        assert change(db, operation, before="partitions/lock", act=slow.commit) is None
    assert [each.id for each in claim(db)] == [row_id]


def test_a_transaction_with_an_old_snapshot_drops_nothing(db: Connection) -> None:
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT count(*) FROM outbox")
        with pytest.raises(SchemaError, match="repeatable read"), db.transaction():
            run(partitions.drop_partition(CATALOG, older_than=DAY), driver_for(db).execute)


# --- plans -----------------------------------------------------------------------------------------------


def test_claims_use_the_ready_index_of_each_partition(db: Connection) -> None:
    db.execute(
        "INSERT INTO outbox (event_type, payload, created_at, status, outcome, attempts, lease_version, done_at)"
        " SELECT 'done', '{}', now() - interval '2 days', 'done', 'delivered', 1, 1, now()"
        " FROM generate_series(1, 2500)"
    )
    db.execute("INSERT INTO outbox (event_type, payload) SELECT 'open', '{}' FROM generate_series(1, 300)")
    db.execute("ANALYZE outbox")
    db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")  # as a dispatcher's session
    plan = "\n".join(
        line
        for (line,) in db.execute(
            "EXPLAIN SELECT id FROM outbox WHERE queue = 'default' AND done_at IS NULL"
            " AND available_at <= statement_timestamp() AND lease_until IS NULL AND status = 'pending'"
            " ORDER BY available_at, id LIMIT 100 FOR UPDATE SKIP LOCKED"
        ).fetchall()
    )
    assert "Merge Append" in plan
    assert "Sort  " not in plan
    assert "Seq Scan" not in plan
    assert plan.count("Index Scan") == 4
    finalize = "\n".join(
        line
        for (line,) in db.execute(
            "EXPLAIN UPDATE outbox SET status = status WHERE id = ANY (ARRAY[5, 7]::bigint[])"
        ).fetchall()
    )
    assert finalize.count("Index Scan") == 1  # the ids say which partition


def test_the_check_of_the_schema_still_sees_a_missing_index(db: Connection) -> None:
    db.execute("DROP INDEX outbox_ready")
    assert OUTBOX.check_schema(db) == ["index outbox_ready is missing: create it as in `fencepost migrate --sql`"]
    assert schema.INDEXES[1] == "ready"


def test_no_statement_runs_what_others_put_on_the_search_path(database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as conn:
        conn.execute(HOSTILE)
        conn.execute("SET search_path = public")
        with conn.transaction():
            OUTBOX.migrate(conn)
        change(conn, partitions.convert(CATALOG, size=SIZE))
        deliver(conn, 999, 1)
        assert change(conn, partitions.add_partition(CATALOG, ahead=4)) == "outbox_p3000"
        assert change(conn, partitions.drop_partition(CATALOG, older_than=timedelta(0))) == "outbox_p0"
        assert len(run(partitions.partitions(CATALOG), driver_for(conn).execute).ranges) == 3
        assert OUTBOX.check_schema(conn) == []
