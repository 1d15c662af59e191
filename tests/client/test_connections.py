"""What connections are like in the wild: other settings, other cursors, autocommit, and the wrong kind."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg  # type: ignore[import-untyped]  # it has no types
import psycopg
import psycopg2  # type: ignore[import-untyped]  # it has no types
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.rows import class_row, dict_row, namedtuple_row
from psycopg.types.string import StrDumper
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencepost import (
    AsyncOutbox,
    AutocommitRefused,
    Claimed,
    ConfigError,
    DedupeConflict,
    InvalidMessage,
    JsonText,
    NewMessage,
    Outbox,
    SchemaError,
    UnsupportedConnection,
)
from tests.client.adapters import Adapter, Producer, sqlalchemy_url
from tests.client.conftest import Table
from tests.runtime.box import until

PAYLOADS: dict[str, tuple[Any, bytes]] = {
    "null": (None, b"null"),
    "false": (False, b"false"),
    "an empty text": ("", b'""'),
    "floats": ([0.1, 1e22, 1e-7, -0.0, 5e-324], b"[0.1,1e+22,1e-07,-0.0,5e-324]"),
    "a large number": (10**400, b"1" + b"0" * 400),
    "key order": ({"b": 1, "a": 2, "": 3}, b'{"b":1,"a":2,"":3}'),
    "unicode": ({"é": "e\u0301 \u00e9 🐘 \u202e \x7f"}, '{"é":"e\u0301 \u00e9 🐘 \u202e \x7f"}'.encode()),
    "what SQL and drivers read": ("it's \\ %s %(x)s $1 :x ? \\u0000", b'"it\'s \\\\ %s %(x)s $1 :x ? \\\\u0000"'),
    "control characters": ("\t\n\x01", b'"\\t\\n\\u0001"'),
    "white space and repeats": (JsonText(' {"a" : 1.50 ,\n"a":[ ]}\t'), b' {"a" : 1.50 ,\n"a":[ ]}\t'),
    "odd numbers": (JsonText("[1E400,1.0e-0,0.10]"), b"[1E400,1.0e-0,0.10]"),
    "escapes": (JsonText('"\\ud83d\\udc18\\/\\\\u0000"'), b'"\\ud83d\\udc18\\/\\\\u0000"'),
    "bytes": (bytes(range(256)), bytes(range(256))),
    "no bytes": (b"", b""),
    "a megabyte": ("x" * 1_000_000, b'"' + b"x" * 1_000_000 + b'"'),
}


async def test_bytes_in_are_bytes_out_over_every_kind_of_connection(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        for payload, _ in PAYLOADS.values():
            await producer.enqueue("one", payload)
        await producer.enqueue_many([NewMessage(event_type="e", payload=each) for each, _ in PAYLOADS.values()])
        await producer.commit()
        held: list[Claimed] = await producer.call("claim", "w")
        await producer.commit()
    stored = [each for _, each in PAYLOADS.values()]
    assert [each.message.payload for each in held] == stored + stored
    kinds = [
        "application/octet-stream" if isinstance(each, bytes) else "application/json"
        for each, _ in PAYLOADS.values()
    ]
    assert [each.message.content_type for each in held] == kinds + kinds


SETTINGS = [
    "TimeZone = '-12:00'",
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = 'iso_8601'",
    "default_transaction_isolation = 'repeatable read'",
    "plan_cache_mode = 'force_generic_plan'",
    "enable_seqscan = off",
    "client_encoding = 'UTF8'",
    "search_path = ''",
    "bytea_output = 'escape'",
    "transform_null_equals = on",
]


async def test_a_session_set_to_anything_works_from_end_to_end(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        for setting in SETTINGS:
            await producer.execute(f"SET {setting}")
        await producer.commit()
        when = datetime(1950, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
        for n in range(8):  # more than psycopg needs to prepare a statement
            await producer.enqueue("e", {"n": n}, available_at=when, dedupe_key=f"k{n}")
            assert not (await producer.enqueue("e", {"n": n}, dedupe_key=f"k{n}")).created
            await producer.commit()
        await producer.enqueue("e", b"\\x00\x00\xff'")
        await producer.commit()
        for n in range(8):
            (held,) = await producer.call("claim", "w", batch=1)
            assert held.message.json() == {"n": n}
            assert abs(datetime.now(UTC) - held.message.created_at) < timedelta(minutes=5)
            assert await producer.call("heartbeat", held) == []
            assert await producer.call("reschedule", held, timedelta(hours=1), "it's 100% \\ é🐘") == []
            await producer.commit()
        (held,) = await producer.call("claim", "w")
        assert held.message.payload == b"\\x00\x00\xff'"
        await producer.commit()
    assert {row["last_error"] for row in table.rows()} == {"it's 100% \\ é🐘", None}


async def test_operators_and_upkeep_over_every_kind_of_connection(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        ids = [
            each.id
            for each in await producer.enqueue_many([NewMessage(event_type="e", payload=n) for n in range(5)])
        ]
        held = await producer.call("claim", "w")
        assert await producer.call("mark_dead", held[:2], "no", outcome="expired") == []
        assert await producer.call("mark_done", held[:3]) == held[:2]
        assert await producer.call("release", held[3]) == []
        await producer.commit()
        table.conn.execute("UPDATE outbox SET lease_until = now() - interval '1 s' WHERE status = 'processing'")
        assert await producer.call("reap", max_attempts=1) == 1
        assert [each.message.id for each in await producer.call("list_dead", outcome="expired")] == ids[:2]
        assert await producer.call("retry_dead", [*ids[:1], 10**12], actor="ann", reason="it's fixed") == ids[:1]
        assert await producer.call("skip_dead", ids[1:2], actor="ann") == ids[1:2]
        assert await producer.call("retry_dead", [], actor="ann") == []
        assert await producer.call("show", 10**12) is None
        assert await producer.call("purge", timedelta(0)) == 2
        assert await producer.call("check_schema") == []
        assert await producer.call("pause_queue", "hook", "ann", reason="it's 100% gone") is True
        assert [each.pause_reason for each in await producer.call("queues")] == ["it's 100% gone"]
        assert await producer.call("close_breaker", "hook") is False
        [shown] = await producer.call("show_all", held[3].message.message_id)
        assert shown == await producer.call("show", held[3].id)
        await producer.commit()
    assert [(row["id"], row["status"]) for row in table.rows()] == [
        (ids[0], "pending"),
        (ids[3], "pending"),
        (ids[4], "dead"),
    ]


async def test_the_tables_are_made_over_every_kind_of_connection(adapter: Adapter, table: Table) -> None:
    outbox = adapter.outbox(schema_name=f"s_{uuid4().hex}", table="Aus-gang")
    async with adapter.producer(table.url) as producer:
        try:
            assert len(await producer.call("migrate", outbox=outbox)) == 7
            assert await producer.call("migrate", outbox=outbox) == []
            await producer.call("enqueue", "e", 1, outbox=outbox)
            await producer.commit()
            assert await producer.call("check_schema", outbox=outbox) == []
            assert len(await producer.call("claim", "w", outbox=outbox)) == 1
        finally:
            await producer.rollback()
            drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(outbox.schema_name))
            table.conn.execute(drop)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "WIN1252"])
async def test_a_session_of_another_encoding_is_refused_before_any_work(
    adapter: Adapter, table: Table, encoding: str
) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("before", "\u20ac \u0151")
        await producer.execute(f"SET client_encoding TO '{encoding}'")
        with pytest.raises(ConfigError, match=f"client_encoding is {encoding}.*UTF8"):
            await producer.enqueue("e", "\u0151", dedupe_key="k")
        with pytest.raises(ConfigError, match=encoding):
            await producer.call("claim", "w")
        await producer.execute("SET client_encoding TO 'UTF8'")
        await producer.enqueue("after", "\u0151")
        await producer.commit()
    assert table.types() == ["before", "after"]


# --- batches and dedupe keys -----------------------------------------------------------------------------


async def test_a_conflict_in_a_batch_leaves_the_transaction_usable(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("e", 1, dedupe_key="k")
        with pytest.raises(DedupeConflict, match="'k'"):
            await producer.enqueue_many([NewMessage(event_type="e", payload=2, dedupe_key="k")])
        await producer.enqueue("after", None)
        await producer.commit()
    assert table.types() == ["e", "after"]


async def test_other_content_under_one_key_of_a_batch_is_a_conflict(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        batch = [NewMessage(event_type="e", payload=n, dedupe_key="k") for n in range(2)]
        with pytest.raises(DedupeConflict, match="'k'"):
            await producer.enqueue_many(batch)
        await producer.rollback()
    assert table.types() == []


async def test_an_insert_that_a_trigger_swallows_is_told_and_not_repeated(adapter: Adapter, table: Table) -> None:
    table.conn.execute(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER swallow BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION swallow()"
    )
    try:
        async with adapter.producer(table.url) as producer:
            with pytest.raises(SchemaError, match="trigger"):
                await producer.enqueue("e", 1)
            with pytest.raises(SchemaError, match="trigger"):
                await producer.enqueue_many([NewMessage(event_type="e", payload=1)])
    finally:
        table.conn.execute("DROP FUNCTION swallow CASCADE")


async def test_a_repeat_after_a_rolled_back_first_is_the_first(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as one, adapter.producer(table.url) as two:
        gone = await one.enqueue("e", 1, dedupe_key="k")
        call = two.outbox.enqueue
        repeat: asyncio.Future[Any] = asyncio.ensure_future(
            call(two.conn, "e", 1, dedupe_key="k")  # type: ignore[arg-type]  # a coroutine where it is async
            if adapter.is_async
            else asyncio.to_thread(call, two.conn, "e", 1, dedupe_key="k")
        )
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: table.conn.execute(waiting).fetchall(), "somebody waiting for a lock")
        await one.rollback()
        receipt = await repeat
        await two.commit()
    assert receipt.created
    assert receipt.id > gone.id
    assert len(table.rows()) == 1


async def test_two_messages_of_a_batch_cannot_have_one_id(adapter: Adapter, table: Table) -> None:
    batch = [NewMessage(event_type="e", payload=n, message_id=UUID(int=7)) for n in range(2)]
    async with adapter.producer(table.url) as producer:
        with pytest.raises(InvalidMessage, match="message_id"):
            await producer.enqueue_many(batch)
        await producer.commit()
    assert table.types() == []


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_concurrent_repeat_under_a_snapshot_is_the_callers_to_retry(table: Table, level: str) -> None:
    outbox = Outbox()
    with psycopg.connect(table.url) as conn:
        conn.execute(f"SET default_transaction_isolation = '{level}'")
        conn.commit()
        conn.execute("SELECT 1 FROM outbox")
        with psycopg.connect(table.url) as other:
            outbox.enqueue(other, "e", 1, dedupe_key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            outbox.enqueue(conn, "e", 1, dedupe_key="k")
        conn.rollback()
        assert not outbox.enqueue(conn, "e", 1, dedupe_key="k").created
    assert len(table.rows()) == 1


def test_a_key_is_compared_byte_for_byte_and_within_its_queue(table: Table) -> None:
    pairs = [("a", "k"), ("b", "k"), ("a", "K"), ("a", "k "), ("a", "\u00e9"), ("a", "e\u0301")]
    with psycopg.connect(table.url) as conn:
        assert all(Outbox().enqueue(conn, "e", 1, queue=queue, dedupe_key=key).created for queue, key in pairs)
    assert len(table.rows()) == 6


# --- autocommit ------------------------------------------------------------------------------------------


async def test_a_refusal_leaves_the_autocommit_connection_as_it_was(adapter: Adapter, table: Table) -> None:
    async with adapter.open_autocommit(table.url) as conn:
        producer = Producer(conn, adapter.outbox())
        with pytest.raises(AutocommitRefused):
            await producer.enqueue("e", None)
        assert list(map(tuple, await producer.execute("SELECT 1"))) == [(1,)]


async def test_sqlalchemy_under_autocommit_only_pretends_to_begin(adapter: Adapter, table: Table) -> None:
    async with adapter.open_autocommit(table.url) as conn:
        producer = Producer(conn, adapter.outbox())
        if isinstance(conn, psycopg.Connection | psycopg.AsyncConnection):
            await producer.execute("BEGIN")  # psycopg's user does begin, by hand
            await producer.enqueue("e", None)
            assert table.types() == []
            await producer.execute("COMMIT")
            assert table.types() == ["e"]
            return
        began = conn.begin()
        if adapter.is_async:
            await began
        with pytest.raises(AutocommitRefused):
            await producer.enqueue("e", None)
    assert table.types() == []


async def test_a_dispatchers_own_steps_need_no_transaction(adapter: Adapter, table: Table) -> None:
    async with adapter.open_autocommit(table.url) as conn:
        producer = Producer(conn, adapter.outbox(allow_autocommit=True))
        await producer.enqueue_many([NewMessage(event_type="e", payload=n) for n in range(3)])
        held = await producer.call("claim", "w", outbox=adapter.outbox())
        assert {row["status"] for row in table.rows()} == {"processing"}
        assert await producer.call("mark_done", held) == []
    assert {row["status"] for row in table.rows()} == {"done"}


def test_one_connection_of_an_engine_under_autocommit_is_seen(table: Table) -> None:
    """The engine is not in autocommit mode: a connection was switched afterwards."""
    engine = sqlalchemy.create_engine(sqlalchemy_url(table.url, "psycopg"))
    with engine.connect() as conn:
        switched = conn.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(AutocommitRefused):
            Outbox().enqueue(switched, "e", None)
    with engine.connect() as conn:
        Outbox().enqueue(conn, "e", None)
        conn.commit()
    engine.dispose()
    assert table.types() == ["e"]


# --- psycopg's own variety -------------------------------------------------------------------------------


class Whatever:
    def __init__(self, **columns: Any) -> None:
        self.columns = columns


@pytest.mark.parametrize("rows", [dict_row, namedtuple_row, class_row(Whatever)], ids=["dict", "named", "class"])
@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_the_callers_rows_and_cursors_are_the_callers_alone(table: Table, rows: Any, cursor: Any) -> None:
    outbox = Outbox()
    with psycopg.connect(table.url, row_factory=rows, cursor_factory=cursor) as conn:
        outbox.enqueue(conn, "e", b"\x00", dedupe_key="k", headers={"a": "b"})
        outbox.enqueue_many(conn, [NewMessage(event_type="e", payload=n) for n in range(3)])
        assert not outbox.enqueue(conn, "e", b"\x00", dedupe_key="k").created
        conn.commit()
        held = outbox.claim(conn, "w")
        assert [each.message.payload for each in held] == [b"\x00", b"0", b"1", b"2"]
        assert outbox.mark_done(conn, held) == []
        assert (conn.row_factory, conn.cursor_factory) == (rows, cursor)
    assert {row["status"] for row in table.rows()} == {"done"}


class Shouting(Loader):
    """A loader of the caller's own, which makes something else of every text and number."""

    def load(self, data: Any) -> Any:
        return bytes(data).upper() + b"!"


class Empty(StrDumper):
    """A dumper of the caller's own, as psycopg's documentation has one: no text is NULL."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj) if obj and obj != "default" else None


def test_the_callers_adapters_are_the_callers_alone(table: Table) -> None:
    outbox = Outbox()
    with psycopg.connect(table.url) as conn:
        for kind in ("text", "int8", "int4", "bytea", "bool"):
            conn.adapters.register_loader(kind, Shouting)
        conn.adapters.register_dumper(str, Empty)
        receipt = outbox.enqueue(conn, "e", {"n": 1}, dedupe_key="k")
        assert outbox.enqueue(conn, "e", {"n": 1}, dedupe_key="k") == replace(receipt, created=False)
        outbox.enqueue(conn, "e", b"\x00")
        held = outbox.claim(conn, "w")
        assert [each.message.payload for each in held] == [b'{"n":1}', b"\x00"]
        assert outbox.mark_done(conn, held) == []
        assert outbox.check_schema(conn) == []
        assert conn.execute("SELECT 'a'::text").fetchone() == (b"A!",)
    assert [row["queue"] for row in table.rows()] == ["default", "default"]


def test_inside_a_pipeline(table: Table) -> None:
    """Rows come only when they are asked for: an enqueue that saw none would insert again and again."""
    outbox = Outbox()
    with psycopg.connect(table.url) as conn, conn.pipeline():
        conn.execute("INSERT INTO orders VALUES (1)")
        receipt = outbox.enqueue(conn, "e", 1, dedupe_key="k")
        assert outbox.enqueue(conn, "e", 1, dedupe_key="k").id == receipt.id
        receipts = outbox.enqueue_many(conn, [NewMessage(event_type="many", payload=n) for n in range(3)])
        outbox.enqueue(conn, "without a key", None)
        held = outbox.claim(conn, "w")
        assert [each.id for each in held[:4]] == [receipt.id, *(each.id for each in receipts)]
        assert outbox.mark_done(conn, held) == []
        assert outbox.mark_done(conn, [held[0]._replace(token=7)]) != []
    assert table.types() == ["e", "many", "many", "many", "without a key"]
    assert {row["status"] for row in table.rows()} == {"done"}


async def test_inside_an_async_pipeline(table: Table) -> None:
    outbox = AsyncOutbox()
    async with await psycopg.AsyncConnection.connect(table.url) as conn, conn.pipeline():
        await conn.execute("INSERT INTO orders VALUES (1)")
        receipt = await outbox.enqueue(conn, "e", 1, dedupe_key="k")
        assert (await outbox.enqueue(conn, "e", 1, dedupe_key="k")).id == receipt.id
        await outbox.enqueue_many(conn, [NewMessage(event_type="many", payload=n) for n in range(3)])
        held = await outbox.claim(conn, "w")
        assert await outbox.mark_done(conn, held) == []
    assert table.types() == ["e", "many", "many", "many"]
    assert {row["status"] for row in table.rows()} == {"done"}


async def test_a_pipeline_on_an_autocommit_connection(table: Table) -> None:
    with psycopg.connect(table.url, autocommit=True) as conn, conn.pipeline():
        conn.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(AutocommitRefused):
            Outbox().enqueue(conn, "refused", 1)
        with conn.transaction():
            Outbox().enqueue(conn, "accepted", 1)
    async with await psycopg.AsyncConnection.connect(table.url, autocommit=True) as aconn, aconn.pipeline():
        await aconn.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(AutocommitRefused):
            await AsyncOutbox().enqueue(aconn, "refused", 1)
        async with aconn.transaction():
            await AsyncOutbox().enqueue(aconn, "accepted", 1)
    assert table.types() == ["accepted", "accepted"]


@pytest.mark.parametrize("threshold", [0, 5, None])
def test_with_and_without_prepared_statements(table: Table, threshold: int | None) -> None:
    outbox = Outbox()
    with psycopg.connect(table.url, prepare_threshold=threshold) as conn:
        for n in range(12):
            outbox.enqueue(conn, "e", n)
            conn.commit()
            assert outbox.mark_done(conn, outbox.claim(conn, "w")) == []
            conn.commit()
    assert [row["status"] for row in table.rows()] == ["done"] * 12


def test_a_scoped_session(table: Table) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(table.url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    Outbox().enqueue(session, "e", 1)
    session.commit()
    session.remove()
    engine.dispose()
    assert table.types() == ["e"]


# --- connections that nobody knows -----------------------------------------------------------------------


async def test_the_wrong_kind_is_refused_with_the_kinds_that_work(table: Table) -> None:
    raw = psycopg2.connect(table.url)
    araw = await asyncpg.connect(table.url)
    memory = sqlite3.connect(":memory:")
    engine = sqlalchemy.create_engine("sqlite://")
    aengine = create_async_engine(sqlalchemy_url(table.url, "asyncpg"))
    with psycopg.connect(table.url) as sync:
        for conn in (raw, araw, memory, None, table.url, engine, aengine):
            with pytest.raises(UnsupportedConnection, match="psycopg Connection, or a SQLAlchemy"):
                Outbox().enqueue(conn, "e", 1)
            with pytest.raises(UnsupportedConnection, match="psycopg AsyncConnection, or a SQLAlchemy"):
                await AsyncOutbox().enqueue(conn, "e", 1)
        # Each twin knows its own kind only.
        with pytest.raises(UnsupportedConnection):
            await AsyncOutbox().enqueue(sync, "e", 1)
    async with aengine.connect() as conn:
        with pytest.raises(UnsupportedConnection):
            Outbox().enqueue(conn, "e", 1)
    with (
        engine.connect() as conn,
        pytest.raises(UnsupportedConnection, match=r"sqlite\+pysqlite is not supported"),
    ):
        Outbox().enqueue(conn, "e", 1)
    with Session(engine) as session, pytest.raises(UnsupportedConnection, match="postgresql"):
        Outbox().enqueue(session, "e", 1)
    raw.close()
    await araw.close()
    memory.close()
    engine.dispose()
    await aengine.dispose()
    assert table.types() == []


def test_the_twins_differ_in_nothing_but_await() -> None:
    def methods(kind: type) -> dict[str, Any]:
        return {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}

    sync, asynchronous = methods(Outbox), methods(AsyncOutbox)
    assert sync.keys() == asynchronous.keys()
    for name, method in sync.items():
        twin = asynchronous[name]
        assert inspect.signature(method) == inspect.signature(twin), name
        assert inspect.getdoc(method) == inspect.getdoc(twin), name
        if name != "schema_sql":
            assert inspect.iscoroutinefunction(twin), name


def test_ordered_messages_are_finalized_in_a_transaction(table: Table) -> None:
    """The locks of their keys would not last from one statement to the next."""
    outbox = Outbox()
    with psycopg.connect(table.url) as conn:
        outbox.enqueue(conn, "e", 1, ordering_key="k")
        conn.commit()
        held = outbox.claim(conn, "w", batch=1) or outbox.claim(conn, "w", batch=1)
        conn.commit()
        conn.autocommit = True
        with pytest.raises(AutocommitRefused, match="finalize ordered messages in their turn would not last"):
            outbox.mark_done(conn, held)
        with conn.transaction():
            assert outbox.mark_done(conn, held) == []
    assert [row["status"] for row in table.rows()] == ["done"]
