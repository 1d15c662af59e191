"""Producers: the same behaviour on every kind of connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from fencepost import (
    AutocommitRefused,
    DedupeConflict,
    InvalidMessage,
    JsonText,
    NewMessage,
    Outbox,
    UnsupportedConnection,
)
from tests.client.adapters import Adapter, Producer
from tests.client.conftest import Table
from tests.runtime.box import until


async def test_an_event_commits_with_the_change_it_announces(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.execute("INSERT INTO orders VALUES (42)")
        receipt = await producer.enqueue(
            "order.created", {"id": 42}, aggregate=("order", "42"), headers={"x": "é"}, recovery="manual"
        )
        assert table.rows() == []
        await producer.commit()
    [row] = table.rows()
    assert (row["id"], row["message_id"], receipt.created) == (receipt.id, receipt.message_id, True)
    assert (row["event_type"], row["text"]) == ("order.created", '{"id":42}')
    assert (row["aggregate_type"], row["aggregate_id"], row["queue"]) == ("order", "42", "default")
    assert (row["header_text"], row["recovery_policy"]) == ('{"x":"é"}', "manual")
    assert (row["status"], row["attempts"], row["lease_version"]) == ("pending", 0, 0)
    assert table.conn.execute("SELECT id FROM orders").fetchall() == [{"id": 42}]


async def test_a_rolled_back_event_never_was(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.execute("INSERT INTO orders VALUES (42)")
        await producer.enqueue("order.created", {"id": 42})
        await producer.rollback()
        await producer.enqueue("order.cancelled", None)
        await producer.commit()
    assert table.types() == ["order.cancelled"]


async def test_a_rolled_back_savepoint_takes_its_events_with_it(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("before", None)
        await producer.execute("SAVEPOINT here")
        await producer.enqueue("inside", None)
        await producer.execute("ROLLBACK TO SAVEPOINT here")
        await producer.enqueue("after", None)
        await producer.commit()
    assert table.types() == ["before", "after"]


async def test_many_messages_go_in_order_and_all_or_none(adapter: Adapter, table: Table) -> None:
    messages = [
        NewMessage(event_type=f"t{n}", payload={"n": n}, headers={"n": str(n)} if n % 2 else None)
        for n in range(2_500)
    ]
    async with adapter.producer(table.url) as producer:
        receipts = await producer.enqueue_many(messages)
        with pytest.raises(InvalidMessage):
            await producer.enqueue_many(
                [NewMessage(event_type="good", payload=1), NewMessage(event_type="", payload=1)]
            )
        assert await producer.enqueue_many([]) == []
        await producer.commit()
    ids = [receipt.id for receipt in receipts]
    assert ids == sorted(ids)
    rows = table.rows()
    assert [row["id"] for row in rows] == ids
    assert [row["message_id"] for row in rows] == [receipt.message_id for receipt in receipts]
    assert [row["text"] for row in rows] == [f'{{"n":{n}}}' for n in range(2_500)]


async def test_a_dedupe_key_is_used_once_and_a_repeat_is_told_apart_from_a_conflict(
    adapter: Adapter, table: Table
) -> None:
    async with adapter.producer(table.url) as producer:
        first = await producer.enqueue("t", {"a": 1}, dedupe_key="k")
        again = await producer.enqueue("t", {"a": 1}, dedupe_key="k")
        other_queue = await producer.enqueue("t", {"a": 1}, dedupe_key="k", queue="other")
        with pytest.raises(DedupeConflict, match="another event type or payload"):
            await producer.enqueue("t", {"a": 2}, dedupe_key="k")
        with pytest.raises(DedupeConflict):
            await producer.enqueue("other", {"a": 1}, dedupe_key="k")
        with pytest.raises(DedupeConflict):
            await producer.enqueue("t", b'{"a":1}', dedupe_key="k", content_type="application/json")
        await producer.enqueue("still usable", None)
        await producer.commit()
    assert (again.id, again.message_id, again.created) == (first.id, first.message_id, False)
    assert other_queue.created
    assert table.types() == ["t", "t", "still usable"]


async def test_dedupe_keys_work_within_and_across_batches(adapter: Adapter, table: Table) -> None:
    def batch() -> list[NewMessage]:
        return [NewMessage(event_type="t", payload=n % 2, dedupe_key=f"k{n % 2}") for n in range(4)]

    async with adapter.producer(table.url) as producer:
        first = await producer.enqueue_many(batch())
        second = await producer.enqueue_many(batch())
        await producer.commit()
    assert [receipt.created for receipt in first] == [True, True, False, False]
    assert [receipt.id for receipt in first[:2]] == [receipt.id for receipt in first[2:]]
    assert [receipt.created for receipt in second] == [False] * 4
    assert len(table.rows()) == 2


async def test_a_concurrent_repeat_waits_for_the_first(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as one:
        first = await one.enqueue("t", 1, dedupe_key="k")
        async with adapter.producer(table.url) as two:
            # A thread of its own where the connection is sync: it blocks in the database until the commit.
            repeat: asyncio.Future[Any]
            if adapter.is_async:
                repeat = asyncio.ensure_future(two.enqueue("t", 1, dedupe_key="k"))
            else:
                repeat = asyncio.ensure_future(asyncio.to_thread(_enqueue_sync, two))
            await _somebody_waits(table)
            assert not repeat.done()
            await one.commit()
            again = await repeat
            await two.commit()
    assert (again.id, again.created) == (first.id, False)


def _enqueue_sync(producer: Producer) -> Any:
    return producer.outbox.enqueue(producer.conn, "t", 1, dedupe_key="k")


async def _somebody_waits(table: Table) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await until(lambda: table.conn.execute(waiting).fetchall(), "somebody waiting for a lock")


async def test_delays_count_by_the_databases_clock_and_instants_are_kept(adapter: Adapter, table: Table) -> None:
    instant = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("delay", None, delay=timedelta(hours=1, microseconds=5))
        await producer.enqueue("instant", None, available_at=instant)
        await producer.enqueue_many([NewMessage(event_type="many", payload=None, available_at=instant)])
        await producer.commit()
    delayed, kept, many = table.rows()
    assert delayed["available_at"] - delayed["created_at"] == timedelta(hours=1, microseconds=5)
    assert kept["available_at"] == many["available_at"] == instant


async def test_bytes_travel_untouched_with_their_content_type(adapter: Adapter, table: Table) -> None:
    data = bytes(range(256)) * 4
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("one", data, content_type="application/avro")
        await producer.enqueue_many(
            [
                NewMessage(event_type="many", payload=data, content_type="application/avro"),
                NewMessage(event_type="empty", payload=b""),
                NewMessage(event_type="json", payload={}),
            ]
        )
        await producer.commit()
    one, many, empty, plain = table.rows()
    assert one["payload_bytes"] == many["payload_bytes"] == data
    assert one["content_type"] == many["content_type"] == "application/avro"
    assert (empty["payload_bytes"], empty["content_type"]) == (b"", "application/octet-stream")
    assert (plain["payload_bytes"], plain["text"]) == (None, "{}")


ODD_TEXT = JsonText(' {"b": 1.0,  "a": "\\u00e9 é \U0001f600 \\" \\\\ \' % %s %(x)s :y $1 ?", "a": 1e400}\n')


async def test_json_text_is_kept_byte_for_byte(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.enqueue("one", ODD_TEXT, headers={"% :x $1 ?": "' \\ % %s"})
        await producer.enqueue_many([NewMessage(event_type="many", payload=ODD_TEXT)])
        await producer.commit()
    one, many = table.rows()
    assert one["text"] == many["text"] == str(ODD_TEXT)
    assert json.loads(one["header_text"]) == {"% :x $1 ?": "' \\ % %s"}


async def test_a_message_id_of_the_callers_own_is_stored(adapter: Adapter, table: Table) -> None:
    own = UUID("0190d3e0-0000-7000-8000-000000000001")
    async with adapter.producer(table.url) as producer:
        receipt = await producer.enqueue("t", None, message_id=own)
        await producer.commit()
    assert receipt.message_id == table.rows()[0]["message_id"] == own


async def test_bad_input_is_refused_before_any_database_work(adapter: Adapter, table: Table) -> None:
    async with adapter.producer(table.url) as producer:
        await producer.execute("INSERT INTO orders VALUES (1)")
        for bad in ({"event_type": "a\x00", "payload": 1}, {"event_type": "t", "payload": float("nan")}):
            with pytest.raises(InvalidMessage):
                await producer.enqueue(**bad)  # type: ignore[arg-type]  # bad on purpose
        await producer.enqueue("t", None)
        await producer.commit()
    assert table.types() == ["t"]
    assert table.conn.execute("SELECT id FROM orders").fetchall() == [{"id": 1}]


async def test_a_connection_that_commits_alone_is_refused_unless_allowed(adapter: Adapter, table: Table) -> None:
    async with adapter.open_autocommit(table.url) as conn:
        refused = Producer(conn, adapter.outbox())
        with pytest.raises(AutocommitRefused, match="allow_autocommit=True"):
            await refused.enqueue("refused", None)
        with pytest.raises(AutocommitRefused):
            await refused.enqueue_many([NewMessage(event_type="refused", payload=None)])
        assert table.types() == []
        await Producer(conn, adapter.outbox(allow_autocommit=True)).enqueue("allowed", None)
        assert table.types() == ["allowed"]


HOSTILE = [
    "SET TIME ZONE 'Pacific/Kiritimati'",
    "SET DateStyle TO 'German, DMY'",
    "SET IntervalStyle TO 'sql_standard'",
    "SET bytea_output TO 'escape'",
    "SET search_path TO pg_temp",
    "SET standard_conforming_strings TO on",
    "SET default_transaction_isolation TO 'serializable'",
    "SET extra_float_digits TO -15",
]


async def test_the_callers_session_settings_change_nothing(adapter: Adapter, table: Table) -> None:
    instant = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    async with adapter.producer(table.url) as producer:
        for setting in HOSTILE:
            await producer.execute(setting)
        await producer.commit()
        first = await producer.enqueue("one", {"x": 0.1}, available_at=instant, dedupe_key="k", headers={"a": "b"})
        again = await producer.enqueue("one", {"x": 0.1}, dedupe_key="k")
        await producer.enqueue_many([NewMessage(event_type="many", payload=b"\x00\\", delay=timedelta(days=40))])
        await producer.commit()
    one, many = table.rows()
    assert again.id == first.id
    assert (one["text"], one["available_at"]) == ('{"x":0.1}', instant)
    assert many["payload_bytes"] == b"\x00\\"
    assert many["available_at"] - many["created_at"] == timedelta(days=40)


@pytest.mark.parametrize("notify", [True, False])
async def test_a_transaction_sends_one_empty_notice_or_none(adapter: Adapter, table: Table, notify: bool) -> None:
    channel = Outbox().catalog.names.channel
    table.conn.execute(f'LISTEN "{channel}"')
    async with adapter.producer(table.url, notify=notify) as producer:
        for _ in range(20):
            await producer.enqueue("t", None)
        await producer.enqueue_many([NewMessage(event_type="t", payload=None)] * 3)
        await producer.commit()
    table.conn.execute("SELECT pg_notify('end', '')")
    table.conn.execute('LISTEN "end"')
    table.conn.execute("SELECT pg_notify('end', '')")
    heard = []
    for notice in table.conn.notifies(timeout=30):
        if notice.channel == "end":
            break
        heard.append((notice.channel, notice.payload))
    assert heard == ([(channel, "")] if notify else [])


async def test_the_whole_life_on_one_connection(adapter: Adapter, table: Table) -> None:
    """Claim, heartbeat, finalize and figures, as a program with its own loop would use them."""
    async with adapter.producer(table.url) as producer:
        outbox, conn = producer.outbox, producer.conn

        async def call(name: str, *args: Any, **kwargs: Any) -> Any:
            result = getattr(outbox, name)(conn, *args, **kwargs)
            return await result if adapter.is_async else result

        await producer.enqueue("json", ODD_TEXT, headers={"a": "é"})
        await producer.enqueue("bytes", b"\x00\xff", content_type="a/b")
        await producer.enqueue("dead", None)
        await producer.commit()
        first, second, third = await call("claim", "w1")
        await producer.commit()
        assert first.message.payload == str(ODD_TEXT).encode()
        assert dict(first.message.headers) == {"a": "é"}
        assert (second.message.payload, second.message.content_type) == (b"\x00\xff", "a/b")
        assert first.message.created_at.utcoffset() == timedelta(0)
        assert await call("heartbeat", [first, second, third]) == []
        assert await call("mark_done", first) == []
        assert await call("reschedule", second, timedelta(0), "later", refund_attempt=True) == []
        assert await call("mark_dead", third, "no") == []
        assert await call("release", first) == [first]
        await producer.commit()
        stats = await call("stats")
        assert (stats.total("pending"), stats.total("dead"), stats.done) == (1, 1, 1)
        [dead] = await call("list_dead")
        assert dead.last_error == "no"
        assert (await call("show", dead.message.message_id)) == dead
        assert await call("skip_dead", [dead.message.id], actor="me") == [dead.message.id]
        assert await call("purge", timedelta(0)) == 2
        await producer.commit()
    assert table.types() == ["bytes"]


async def test_a_prepared_transaction_is_possible_without_notices(table: Table) -> None:
    with psycopg.connect(table.url) as conn:
        Outbox(notify=False).enqueue(conn, "t", None)
        conn.execute("PREPARE TRANSACTION 'two phases'")
        conn.commit()
    assert table.types() == []
    table.conn.execute("COMMIT PREPARED 'two phases'")
    assert table.types() == ["t"]


async def test_psycopg_in_its_own_transaction_block_is_accepted_and_its_row_factory_left_alone(
    table: Table,
) -> None:
    import psycopg

    with psycopg.connect(table.url, autocommit=True, row_factory=dict_row) as conn:
        with conn.transaction():
            Outbox().enqueue(conn, "t", None, dedupe_key="k")
        with contextlib.suppress(ZeroDivisionError), conn.transaction():
            Outbox().enqueue(conn, "gone", None)
            raise ZeroDivisionError
        assert conn.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    assert table.types() == ["t"]


def test_a_connection_of_an_unknown_kind_is_refused_with_the_ones_that_work() -> None:
    conn = sqlite3.connect(":memory:")
    with pytest.raises(UnsupportedConnection, match=r"sqlite3\.Connection is not a connection .* psycopg"):
        Outbox().enqueue(conn, "t", None)
    conn.close()


# --- ordering keys ---------------------------------------------------------------------------------------


async def test_ordered_messages_over_every_kind_of_connection(adapter: Adapter, table: Table) -> None:
    """Enqueued one by one and in a batch, claimed as a run, closed with it; the lock is held until the commit."""
    table.conn.execute("INSERT INTO outbox_queue (queue, sequenced) VALUES ('counted', true)")
    ordered = {"aggregate": ("order", "42"), "ordered": True, "queue": "counted"}
    waiting = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND granted"
    async with adapter.producer(table.url, notify=False) as producer:
        with pytest.raises(InvalidMessage, match="needs aggregate"):
            await producer.enqueue("e", 0, ordered=True)
        first = await producer.enqueue("e", 1, dedupe_key="d", **ordered)
        assert not (await producer.enqueue("e", 1, dedupe_key="d", **ordered)).created
        assert table.conn.execute(waiting).fetchall() == [{"n": 1}]
        batch = [NewMessage(event_type="e", payload=n, ordering_key=key, queue="counted") for n, key in
                 enumerate(["k", '["order","42"]', "🐘", "k"])]  # fmt: skip
        receipts = await producer.enqueue_many(batch)
        assert table.conn.execute(waiting).fetchall() == [{"n": 3}]
        await producer.commit()
        assert table.conn.execute(waiting).fetchall() == [{"n": 0}]
        held = await producer.call("claim", "w")
        assert [(each.id, each.message.ordering_key, each.message.key_sequence) for each in held] == [
            (first.id, '["order","42"]', 1),
            (receipts[0].id, "k", 1),
            (receipts[1].id, '["order","42"]', 2),
            (receipts[2].id, "🐘", 1),
            (receipts[3].id, "k", 2),
        ]
        await producer.commit()
        assert await producer.call("mark_done", held[3:]) == held[4:]
        await producer.commit()
        assert await producer.call("mark_done", held[:3]) == []
        (again,) = await producer.call("claim", "w")
        assert await producer.call("mark_dead", again, "no") == []
        await producer.enqueue_many(batch[3:])
        await producer.commit()
        assert await producer.call("claim", "w") == []
        assert await producer.call("skip_dead", [again.id], actor="ann") == [again.id]
        await producer.commit()
        assert len(await producer.call("claim", "w")) == 1
        await producer.commit()
