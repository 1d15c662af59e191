"""One effect for each message, and its acknowledgement after the commit, on every kind of connection."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from fencepost import (
    Acceptance,
    AsyncInbox,
    AutocommitRefused,
    ConfigError,
    Inbox,
    InvalidMessage,
    MessageConflict,
    SequenceGap,
)
from fencepost.consumers import AsyncConsumer, Consumer, Incoming, Received
from fencepost.drivers.sqlstate import sqlstate_of
from fencepost.errors import EffectLost
from tests.client.adapters import Producer
from tests.consumers.conftest import Broker, Effects, message
from tests.consumers.kinds import KINDS, Kind, handled, receiving

MAKE = "INSERT INTO effect VALUES ('m')"


async def make(received: Received, on: Producer) -> None:
    await on.execute(f"INSERT INTO effect VALUES ('{received.message_id}')")


class Boom(Exception):
    """The handler's own error."""


async def test_a_message_has_its_effect_once_and_is_acknowledged_after_the_commit(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    consumer = kind.consumer(effects.url)
    found = [await handled(consumer, make, broker.incoming(is_async=kind.is_async)) for _ in range(3)]
    assert found == [Acceptance.ACCEPTED, Acceptance.REPEAT, Acceptance.REPEAT]
    assert effects.made() == ["m"]
    assert broker.told == [("ack", 1)] * 3


async def test_the_context_manager_does_the_same(kind: Kind, effects: Effects, broker: Broker) -> None:
    consumer = kind.consumer(effects.url)
    for wanted in (Acceptance.ACCEPTED, Acceptance.REPEAT):
        async with receiving(consumer, broker.incoming(is_async=kind.is_async)) as (taken, on):
            assert taken.acceptance is wanted
            if taken:
                await make(taken.received, on)
    assert effects.made() == ["m"]
    assert broker.told == [("ack", 1)] * 2


async def test_an_error_leaves_nothing_and_gives_the_message_back(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    consumer = kind.consumer(effects.url)

    async def fail(received: Received, on: Producer) -> None:
        await make(received, on)
        raise Boom

    with pytest.raises(Boom):
        await handled(consumer, fail, broker.incoming(is_async=kind.is_async))
    with pytest.raises(Boom):
        async with receiving(consumer, broker.incoming(is_async=kind.is_async)) as (taken, on):
            await fail(taken.received, on)
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [("nack", 0)] * 2)
    assert await handled(consumer, make, broker.incoming(is_async=kind.is_async))


async def test_a_transaction_that_failed_inside_of_the_handler_is_not_acknowledged(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a rollback, and drivers take that for success."""

    async def look_away(received: Received, on: Producer) -> None:
        await make(received, on)
        with suppress(Exception):
            await on.execute("SELECT 1 / 0")

    with pytest.raises(Exception) as failure:  # what a statement of ours gets there, in each library's words
        await handled(kind.consumer(effects.url), look_away, broker.incoming(is_async=kind.is_async))
    assert isinstance(failure.value, EffectLost) or sqlstate_of(failure.value) == "25P02"
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [("nack", 0)])


async def test_a_rollback_inside_of_the_handler_is_not_acknowledged(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    async def undo(received: Received, on: Producer) -> None:
        await make(received, on)
        await on.execute("ROLLBACK")

    consumer = kind.consumer(effects.url)
    # asyncpg notices by itself that its transaction is gone.
    with pytest.raises(Exception, match=r"rolled back although nothing was raised|transaction"):
        await handled(consumer, undo, broker.incoming(is_async=kind.is_async))
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [("nack", 0)])


async def test_a_savepoint_of_the_handler_is_its_own_matter(kind: Kind, effects: Effects, broker: Broker) -> None:
    async def try_twice(received: Received, on: Producer) -> None:
        await on.execute("SAVEPOINT s")
        await make(received, on)
        with suppress(Exception):
            await on.execute("SELECT 1 / 0")
        await on.execute("ROLLBACK TO SAVEPOINT s")
        await make(received, on)

    assert await handled(kind.consumer(effects.url), try_twice, broker.incoming(is_async=kind.is_async))
    assert (effects.made(), broker.told) == (["m"], [("ack", 1)])


async def test_a_connection_that_is_cut_leaves_nothing(kind: Kind, effects: Effects, broker: Broker) -> None:
    async def cut(received: Received, on: Producer) -> None:
        await make(received, on)
        await on.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    consumer = kind.consumer(effects.url)
    with pytest.raises(Exception, match=r"(?i)terminat|clos"):
        await handled(consumer, cut, broker.incoming(is_async=kind.is_async))
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [("nack", 0)])
    assert await handled(consumer, make, broker.incoming(is_async=kind.is_async))


RAISE = "DO $$BEGIN RAISE EXCEPTION 'bad luck' USING ERRCODE = '{}'; END$$"


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_bad_luck_is_run_again_in_a_new_transaction(
    kind: Kind, effects: Effects, broker: Broker, code: str
) -> None:
    runs = []

    async def unlucky(received: Received, on: Producer) -> None:
        await make(received, on)
        runs.append(code)
        if len(runs) < 3:
            await on.execute(RAISE.format(code))

    assert await handled(kind.consumer(effects.url), unlucky, broker.incoming(is_async=kind.is_async))
    assert (len(runs), effects.made(), broker.told) == (3, ["m"], [("ack", 1)])


async def test_bad_luck_without_end_is_an_error_in_the_end(kind: Kind, effects: Effects, broker: Broker) -> None:
    runs = []

    async def unlucky(received: Received, on: Producer) -> None:
        runs.append(received)
        await on.execute(RAISE.format("40001"))

    consumer = kind.consumer(effects.url, attempts=2)
    with pytest.raises(Exception, match="bad luck"):
        await handled(consumer, unlucky, broker.incoming(is_async=kind.is_async))
    assert (len(runs), broker.told) == (2, [("nack", 0)])


async def test_an_acknowledgement_that_fails_is_logged_and_the_effect_stands(
    kind: Kind, effects: Effects, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fails = True
    consumer = kind.consumer(effects.url)
    assert await handled(consumer, make, broker.incoming(is_async=kind.is_async))
    with pytest.raises(Boom):
        async with receiving(consumer, broker.incoming("other", is_async=kind.is_async)):
            raise Boom
    assert effects.made() == ["m"]
    assert [re.sub("'.*' ", "", record.message) for record in caplog.records] == [
        "message could not be acknowledged: the broker is gone",
        "message could not be given back: the broker is gone",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


async def test_without_ack_the_caller_acknowledges(kind: Kind, effects: Effects) -> None:
    assert await handled(kind.consumer(effects.url), make, message())
    assert effects.made() == ["m"]


# --- what the inbox says --------------------------------------------------------------------------------------


async def test_an_older_token_is_acknowledged_quietly(kind: Kind, effects: Effects, broker: Broker) -> None:
    consumer = kind.consumer(effects.url)
    found = [
        await handled(consumer, make, broker.incoming(is_async=kind.is_async, Token=token)) for token in ("5", "4")
    ]
    assert found == [Acceptance.ACCEPTED, Acceptance.STALE]
    assert [what for what, _ in broker.told] == ["ack", "ack"]


async def test_another_body_under_the_same_id_is_raised(kind: Kind, effects: Effects) -> None:
    consumer = kind.consumer(effects.url)
    await handled(consumer, make, message("m", b"one"))
    with pytest.raises(MessageConflict):
        await handled(consumer, make, message("m", b"two"))
    unchecked = kind.consumer(effects.url, check_body=False)
    assert await handled(unchecked, make, message("m", b"two")) is Acceptance.REPEAT


async def test_numbers_of_a_key_are_taken_in_order(kind: Kind, effects: Effects, broker: Broker) -> None:
    consumer = kind.consumer(effects.url, in_sequence=True)

    async def take(number: int, by: Any = consumer) -> Acceptance:
        headers = {"Key": "k", "Key_Sequence": str(number)}
        return await handled(by, make, broker.incoming(f"m{number}", is_async=kind.is_async, **headers))

    assert [await take(1), await take(2), await take(2)] == [
        *(Acceptance.ACCEPTED, Acceptance.ACCEPTED, Acceptance.REPEAT),
    ]
    with pytest.raises(SequenceGap, match="expected number 3"):
        await take(4)
    assert broker.told[-1] == ("nack", 2)
    assert await take(3)
    assert await take(9, kind.consumer(effects.url, in_sequence=True, allow_gap=True))
    assert (effects.made(), effects.accepted()) == (["m1", "m2", "m3", "m9"], 0)


async def test_a_key_begins_with_one_unless_the_consumer_begins_in_the_middle(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    incoming = broker.incoming("m5", is_async=kind.is_async, Key="k", Key_Sequence="5")
    with pytest.raises(SequenceGap, match="expected number 1"):
        await handled(kind.consumer(effects.url, in_sequence=True), make, incoming)
    assert await handled(kind.consumer(effects.url, in_sequence=True, first=None), make, incoming)
    assert effects.made() == ["m5"]


async def test_a_lost_transaction_is_noticed_in_a_sequence_as_well(
    kind: Kind, effects: Effects, broker: Broker
) -> None:
    async def undo(received: Received, on: Producer) -> None:
        await on.execute("ROLLBACK")

    consumer = kind.consumer(effects.url, in_sequence=True)
    incoming = broker.incoming(is_async=kind.is_async, Key="k", Key_Sequence="1")
    with pytest.raises(Exception, match=r"rolled back although nothing was raised|transaction"):
        await handled(consumer, undo, incoming)
    assert broker.told == [("nack", 0)]


async def test_a_message_without_a_number_is_refused_before_any_database_work() -> None:
    consumer = Consumer(Inbox("billing"), partial(psycopg.connect, "host=/nowhere"), in_sequence=True)
    for headers, missing in (({}, "Fencepost-Key,"), ({"Key": "k"}, "Fencepost-Key-Sequence,")):
        with pytest.raises(InvalidMessage, match=f"no {missing}.*--sequenced"):
            await handled(consumer, make, message(**headers))


# --- many at once ---------------------------------------------------------------------------------------------


async def test_of_many_consumers_of_one_message_one_makes_the_effect(effects: Effects) -> None:
    consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, effects.url))
    found = await asyncio.gather(*(handled(consumer, make, message()) for _ in range(30)))
    assert sorted(each.name for each in found) == ["ACCEPTED", *["REPEAT"] * 29]
    assert effects.made() == ["m"]


async def test_a_real_serialization_failure_is_run_again(effects: Effects) -> None:
    """Two serializable transactions that each count what the other inserts: one of them has to run again."""
    effects.conn.execute(
        f"ALTER DATABASE {effects.conn.info.dbname} SET default_transaction_isolation = serializable"
    )
    both_counted = asyncio.Barrier(2)
    runs: list[str] = []

    async def count_and_make(received: Received, on: Producer) -> None:
        first = received.message_id not in runs
        runs.append(received.message_id)
        await on.execute("SELECT count(*) FROM effect")
        if first:
            await both_counted.wait()
        await make(received, on)

    try:
        consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, effects.url))
        await asyncio.gather(*(handled(consumer, count_and_make, message(each)) for each in ("a", "b")))
    finally:
        effects.conn.execute(f"ALTER DATABASE {effects.conn.info.dbname} RESET default_transaction_isolation")
    assert effects.made() == ["a", "b"]
    assert len(runs) == 3


async def test_a_cancelled_consumer_leaves_nothing_and_acknowledges_nothing(
    effects: Effects, broker: Broker
) -> None:
    consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, effects.url))
    begun = asyncio.Event()

    async def hang(received: Received, on: Producer) -> None:
        await make(received, on)
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(handled(consumer, hang, broker.incoming(is_async=True)))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [])


def test_an_interrupt_leaves_nothing_and_tells_the_broker_nothing(effects: Effects, broker: Broker) -> None:
    [kind] = [each for each in KINDS if each.name == "psycopg, in nobody's hands"]

    def interrupt(received: Received, connection: psycopg.Connection) -> None:
        connection.execute(MAKE)
        raise KeyboardInterrupt

    consumer = kind.consumer(effects.url)
    assert isinstance(consumer, Consumer)
    with pytest.raises(KeyboardInterrupt):
        consumer.handler(interrupt)(broker.incoming(is_async=False))
    assert (effects.made(), effects.accepted(), broker.told) == ([], 0, [])


# --- what cannot work -----------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused(effects: Effects) -> None:
    connect = partial(psycopg.connect, effects.url)
    with pytest.raises(ConfigError, match="attempts must be 1"):
        Consumer(Inbox("billing"), connect, attempts=0)
    with pytest.raises(ConfigError, match="allow_gap has a meaning with in_sequence"):
        Consumer(Inbox("billing"), connect, allow_gap=True)
    with pytest.raises(ConfigError, match="first has a meaning with in_sequence"):
        Consumer(Inbox("billing"), connect, first=None)

    async def coroutine(received: Received, connection: Any) -> None:
        """Nothing."""

    consumer = Consumer(Inbox("billing"), connect)
    with pytest.raises(ConfigError, match=r"coroutine is async.*AsyncConsumer"):
        consumer.handler(coroutine)
    with pytest.raises(ConfigError, match="not async"):
        AsyncConsumer(AsyncInbox("billing"), lambda: None).handler(lambda *_: None)  # type: ignore[arg-type, return-value]  # wrong on purpose


def test_an_async_clients_message_is_refused_by_the_sync_consumer(effects: Effects) -> None:
    async def ack() -> None:
        """Nothing."""

    consumer = Consumer(Inbox("billing"), partial(psycopg.connect, effects.url))
    with pytest.raises(ConfigError, match="use AsyncConsumer"):
        consumer.handler(lambda *_: None)(Incoming(message(), ack))
    assert effects.accepted() == 0
    # One that cannot be told before it is called is not lost without a word either.
    with pytest.raises(ConfigError, match="use AsyncConsumer"):
        consumer.handler(lambda *_: None)(Incoming(message(), partial(_later, ack)))


def test_consumers_need_no_brokers_library() -> None:
    modules = "faststream, http, kafka, mqtt, nats, rabbitmq, redis, sqs"
    libraries = "('aio_pika', 'aiormq', 'boto3', 'confluent_kafka', 'faststream', 'nats', 'paho', 'redis')"
    code = f"import sys\nfrom fencepost.consumers import {modules}\nprint({{*{libraries}}} & {{*sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "set()\n"


def _later(ack: Callable[[], Awaitable[None]]) -> Awaitable[None]:
    return ack()


def test_a_connection_that_commits_each_statement_is_refused(effects: Effects, broker: Broker) -> None:
    consumer = Consumer(Inbox("billing"), partial(psycopg.connect, effects.url, autocommit=True))
    with pytest.raises(AutocommitRefused):
        consumer.handler(lambda *_: None)(broker.incoming(is_async=False))
    assert (effects.accepted(), broker.told) == (0, [("nack", 0)])


def test_a_connection_whose_block_keeps_the_error_to_itself_is_not_acknowledged(
    effects: Effects, broker: Broker
) -> None:
    class Quiet:
        def __enter__(self) -> psycopg.Connection:
            self._connection = psycopg.connect(effects.url)
            return self._connection

        def __exit__(self, *_: object) -> bool:
            self._connection.close()
            return True

    def fail(received: Received, connection: Any) -> None:
        raise Boom

    with pytest.raises(EffectLost):
        Consumer(Inbox("billing"), Quiet).handler(fail)(broker.incoming(is_async=False))
    assert broker.told == [("nack", 0)]
