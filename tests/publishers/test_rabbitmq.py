"""RabbitMQ against a real broker: routing, refusals, broken channels, alarms, lost connections, secrets."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.rabbitmq.letter import MAX_SHORT_BYTES, Letter, routing_key_for
from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from fencepost.publishers.template import Template
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.fault_proxy import FaultProxy
from fencepost.testing.publisher_conformance import FREE_TEXTS
from tests.publishers.in_use import Shown, in_use
from tests.publishers.rabbitmq_server import CERTIFICATE_USER, MAX_MESSAGE_BYTES, RabbitServer, as_received

TIMEOUT = 0.6
SLACK = 1.0


@pytest.fixture
async def channel(rabbit_server: RabbitServer) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """A channel of the test's own."""
    async with await rabbit_server.connect() as connection:
        yield await connection.channel()


@pytest.fixture
async def queue(channel: aio_pika.abc.AbstractChannel) -> AsyncIterator[aio_pika.abc.AbstractQueue]:
    """A durable queue of a new name."""
    queue = await channel.declare_queue(f"q{secrets.token_hex(4)}", durable=True)
    yield queue
    await channel.queue_delete(queue.name)


def opened(
    server: RabbitServer, query: str = "", *, login: str = "guest:guest", timeout: float = TIMEOUT, port: int = 0
) -> AbstractAsyncContextManager[RabbitPublisher]:
    return in_use(RabbitPublisher(f"amqp://{login}@127.0.0.1:{port or server.port}?timeout={timeout}{query}"))


async def count(channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue) -> int:
    declared = await channel.declare_queue(queue.name, passive=True)
    return declared.declaration_result.message_count or 0


def add_user(server: RabbitServer, name: str, password: str, *, write: str = ".*") -> None:
    server.control("add_user", name, password)
    server.control("set_permissions", name, "", write, "")


class TestRoutingKey:
    @pytest.mark.parametrize(
        ("template", "event_type", "key"),
        [
            ("{event_type}", "order.created", "order.created"),
            ("{event_type}", "", "_"),
            ("{event_type}", ".", "_._"),
            ("{event_type}", "a b*c#d%e$f", "a%20b%2Ac%23d%25e$f"),
            ("{event_type}", "é\r\n\t", "%C3%A9%0D%0A%09"),
            ("{event_type}", "amq.gen-x", "%61mq.gen-x"),
            ("{event_type}", "amq.rabbitmq.reply-to.x", "%61mq.rabbitmq.reply-to.x"),
            ("{event_type}", "amqp", "amqp"),
            ("amq.{event_type}", "x", "amq.x"),
            ("shop.{event_type}.v1", "order.paid", "shop.order.paid.v1"),
            ("{queue}.{aggregate_type}.{aggregate_id}.{key}", "x", "a%2Eq.order.4%2E2.4%2E2"),
        ],
    )
    def test_documented_rule(self, template: str, event_type: str, key: str) -> None:
        message = sample_message(event_type, queue="a.q", aggregate_id="4.2")
        assert routing_key_for(Template(template, "?routing_key="), message) == key

    @given(st.text(max_size=400))
    def test_any_text_gives_a_key_that_amqp_holds(self, text: str) -> None:
        message = sample_message(text, queue=text, aggregate_id=text)
        for template in ("{event_type}", "e.{event_type}.{queue}.{key}"):
            key = routing_key_for(Template(template, "?routing_key="), message)
            assert len(key.encode()) <= MAX_SHORT_BYTES
            assert all("!" <= char <= "~" and char not in "*#" for char in key)
            assert key
            assert not key.startswith("amq.")

    def test_long_keys_are_cut_and_stay_distinct(self) -> None:
        template = Template("{event_type}", "?routing_key=")
        one, two = (routing_key_for(template, sample_message("x" * 800 + end)) for end in "ab")
        assert len(one) == len(two) == MAX_SHORT_BYTES
        assert one != two


@given(st.dictionaries(st.text("abc", min_size=1, max_size=30), st.text("xyz", max_size=300), max_size=9))
def test_the_header_frame_is_never_larger_than_we_take_it_for(headers: dict[str, str]) -> None:
    properties = Basic.Properties(
        content_type="t" * 255,
        headers=dict(headers),
        delivery_mode=2,
        message_id="m" * 36,
        timestamp=sample_message().created_at,
        message_type="t" * 255,
        app_id="fencepost",
    )
    frame = len(ContentHeader(body_size=1, properties=properties).marshal()) + len(b"tccssssE")
    assert frame <= Letter(b"", "", "", properties).header_bytes <= frame + 300


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp:///x", "name the broker"),
        ("amqp://h?exchange=" + "x" * 300, "exchange"),
        ("amqp://h?exchange=a%0Ab", "exchange"),
        ("amqp://h?routing_key=", "routing_key"),
        ("amqp://h?routing_key={nope}", "fields are"),
        ("amqp://h?queue=x", "unknown option 'queue'"),
        ("amqp://h?max_message_bytes=0", "max_message_bytes"),
        ("amqp://h?ca=x.pem", "ca need amqps://"),
        ("amqps://h?ca=/nowhere.pem", "cannot be read"),
        ("amqp://u:p@h?user_env=X", "given twice"),
    ],
)
def test_urls_that_cannot_work_are_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RabbitPublisher(url)


async def test_properties_and_headers(rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue) -> None:
    message = sample_message(headers={"tenant": "acme"}, content_type="application/json")
    async with opened(rabbit_server, f"&routing_key={queue.name}") as publisher:
        await publisher.publish(message, sample_delivery(token=7))
    arrived = await queue.get(no_ack=True)
    assert arrived.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert arrived.message_id == str(message.message_id)
    assert arrived.content_type == "application/json"
    assert arrived.type == "order.created"
    assert arrived.app_id == "fencepost"
    assert arrived.timestamp == message.created_at.replace(microsecond=0)
    assert arrived.headers["Fencepost-Token"] == "7"
    assert arrived.headers["tenant"] == "acme"
    assert "Content-Type" not in arrived.headers


async def test_what_does_not_fit_into_a_property_stays_in_the_headers(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    event_type, content_type = "\N{ROCKET}" * 60, "text/plain; x=" + "%" * 200
    message = sample_message(event_type, content_type=content_type)
    async with opened(rabbit_server, f"&routing_key={queue.name}") as publisher:
        await publisher.publish(message, sample_delivery())
    arrived = await queue.get(no_ack=True)
    assert (arrived.type, arrived.content_type) == (None, None)
    decoded = as_received(arrived)
    assert (decoded.event_type, decoded.content_type) == (event_type, content_type)


async def test_headers_that_the_broker_would_obey_are_only_carried(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    victim = await channel.declare_queue(exclusive=True)
    headers = {"CC": victim.name, "BCC": victim.name, "x-delay": "60000", "x-death": "x"}
    async with opened(rabbit_server, f"&routing_key={queue.name}") as publisher:
        await publisher.publish(sample_message(headers=headers), sample_delivery())
    arrived = await queue.get(no_ack=True)
    assert {
        f"Fencepost-Header-{name}": value for name, value in headers.items()
    }.items() <= arrived.headers.items()
    assert await count(channel, victim) == 0


async def test_a_quorum_queue_confirms(rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel) -> None:
    queue = await channel.declare_queue("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    messages = [sample_message("quorum", id=number) for number in range(20)]
    async with opened(rabbit_server, timeout=5) as publisher:
        assert await publisher.publish_batch(messages, [sample_delivery()] * 20) == [None] * 20
    arrived = [as_received(await queue.get(no_ack=True)).message_id for _ in messages]
    assert arrived == [message.message_id for message in messages]
    await channel.queue_delete("quorum")


async def test_unroutable_is_retryable_says_what_to_bind_and_delivers_once_it_is_bound(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    exchange = await channel.declare_exchange("unbound", "topic", durable=True)
    async with opened(rabbit_server, "&exchange=unbound") as publisher:
        with pytest.raises(
            Retryable, match=r"no queue for exchange 'unbound' with routing key 'order\.created': bind one"
        ) as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert not failure.value.unavailable
        await queue.bind(exchange, "order.#")
        await publisher.publish(sample_message(), sample_delivery())
    assert await count(channel, queue) == 1
    await channel.exchange_delete("unbound")


async def test_a_batch_knows_the_unroutable_from_the_others_and_stops_their_keys_only(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    good = [sample_message(queue.name, id=number, ordering_key=f"k{number % 3}") for number in range(12)]
    bad = sample_message("nowhere", id=99, ordering_key="k0")
    async with opened(rabbit_server, timeout=5) as publisher:
        batch = [*good[:4], bad, *good[4:]]
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 13)
    failed = [place for place, outcome in enumerate(outcomes) if outcome is not None]
    assert failed == [4, 7, 10], "the unroutable one, and what is behind it in its key"
    assert "there is no queue 'nowhere'" in str(outcomes[4])
    assert await count(channel, queue) == 10


async def test_a_missing_exchange_is_retryable_and_delivers_once_it_is_there(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    async with opened(rabbit_server, "&exchange=later") as publisher:
        messages = [sample_message(id=number) for number in range(5)]
        for outcome in await publisher.publish_batch(messages, [sample_delivery()] * 5):
            assert isinstance(outcome, Retryable)
            assert "create the exchange, or correct ?exchange=: NOT_FOUND - no exchange 'later'" in str(outcome)
        exchange = await channel.declare_exchange("later", "fanout")
        await queue.bind(exchange)
        assert await publisher.publish_batch(messages, [sample_delivery()] * 5) == [None] * 5
    await channel.exchange_delete("later")


async def test_a_full_queue_that_refuses_is_retryable(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel
) -> None:
    full = await channel.declare_queue(
        "full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    async with opened(rabbit_server) as publisher:
        await publisher.publish(sample_message("full"), sample_delivery())
        with pytest.raises(Retryable, match=r"refused the message \(nack\); is it full\? It went to queue 'full'"):
            await publisher.publish(sample_message("full"), sample_delivery())
        await full.purge()
        await publisher.publish(sample_message("full"), sample_delivery())


async def test_free_text_beside_twenty_good_ones(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    odd = [sample_message(text, aggregate_id=text, headers={"x": text}) for text in FREE_TEXTS.values()]
    good = [sample_message(queue.name, id=number) for number in range(20)]
    async with opened(rabbit_server, timeout=5) as publisher:
        outcomes = await publisher.publish_batch([*odd, *good], [sample_delivery()] * (len(odd) + 20))
    assert all(isinstance(outcome, Retryable) for outcome in outcomes[: len(odd)]), "returned, each on its own"
    assert outcomes[len(odd) :] == [None] * 20
    assert await count(channel, queue) == 20


class TestTooLarge:
    async def test_the_brokers_own_limit_is_permanent_and_learned(
        self, rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
    ) -> None:
        def message(size: int) -> Any:
            return sample_message(queue.name, payload=b"x" * size)

        async with opened(rabbit_server, timeout=5) as publisher:
            with pytest.raises(Permanent, match=rf"RabbitMQ accepts {MAX_MESSAGE_BYTES} \(max_message_size\)"):
                await publisher.publish(message(MAX_MESSAGE_BYTES + 1), sample_delivery())
            await publisher.publish(message(MAX_MESSAGE_BYTES), sample_delivery())
            lane = (await publisher._connector.get(time.monotonic() + 1)).shared().result()
            with pytest.raises(Permanent):
                await publisher.publish(message(MAX_MESSAGE_BYTES + 1), sample_delivery())
            assert lane.usable, "now it is refused before it is sent"
        assert await count(channel, queue) == 1

    async def test_the_option_is_looked_at_before_anything_is_sent(self, rabbit_server: RabbitServer) -> None:
        async with opened(rabbit_server, "&max_message_bytes=100") as publisher:
            with pytest.raises(Permanent, match="the payload is 101 bytes; RabbitMQ accepts 100"):
                await publisher.publish(sample_message(payload=b"x" * 101), sample_delivery())


class TestPermissions:
    async def test_a_refused_routing_key_spares_its_neighbours(
        self, rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
    ) -> None:
        await queue.bind(await channel.declare_exchange("topics", "topic", durable=True), "#")
        await asyncio.to_thread(add_user, rabbit_server, "topical", "pass-topical")
        await asyncio.to_thread(
            rabbit_server.control, "set_topic_permissions", "topical", "topics", "^order", "^order"
        )
        batch = [sample_message(id=number) for number in range(21)]
        batch[10] = sample_message("secret.event", id=10)
        async with opened(
            rabbit_server, "&exchange=topics", login="topical:pass-topical", timeout=20
        ) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 21)
            singly = await asyncio.gather(
                *(publisher.publish(message, sample_delivery()) for message in batch), return_exceptions=True
            )
        for results in (outcomes, singly):
            assert [place for place, outcome in enumerate(results) if outcome is not None] == [10]
            assert isinstance(results[10], Retryable)
            assert "refused for exchange 'topics' with routing key 'secret.event': ACCESS_REFUSED" in str(
                results[10]
            )
            assert "topical" not in str(results[10])
        await channel.exchange_delete("topics")

    async def test_no_permission_to_write_is_retryable_and_granted_it_delivers(
        self, rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
    ) -> None:
        await asyncio.to_thread(add_user, rabbit_server, "reader", "pass-reader", write="")
        query = f"&routing_key={queue.name}"
        async with opened(rabbit_server, query, login="reader:pass-reader", timeout=5) as publisher:
            with pytest.raises(Retryable, match="ACCESS_REFUSED - access to exchange"):
                await publisher.publish(sample_message(), sample_delivery())
            await asyncio.to_thread(rabbit_server.control, "set_permissions", "reader", "", ".*", "")
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_missing_virtual_host_and_a_refused_login_say_so(self, rabbit_server: RabbitServer) -> None:
        for login, vhost, said in (
            ("guest:guest", "/nowhere", "is there a virtual host 'nowhere'"),
            ("guest:wrong-password", "/", "ACCESS_REFUSED"),
        ):
            publisher = RabbitPublisher(f"amqp://{login}@127.0.0.1:{rabbit_server.port}{vhost}?timeout=5")
            with pytest.raises(Retryable, match=said) as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable
            await publisher.close()


@asynccontextmanager
async def suspended(server: RabbitServer, queue: aio_pika.abc.AbstractQueue) -> AsyncIterator[None]:
    """Stop a queue's process, so that nothing in it is confirmed."""
    found = f'{{ok,Q}}=rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>,queue,<<"{queue.name}">>)),'
    await asyncio.to_thread(server.control, "eval", f"{found} sys:suspend(amqqueue:get_pid(Q)).")
    try:
        yield
    finally:
        await asyncio.to_thread(server.control, "eval", f"{found} sys:resume(amqqueue:get_pid(Q)).")


async def test_a_missing_confirm_ends_by_the_deadline_disturbs_no_other_and_comes_too_late(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    other = await channel.declare_queue("other", exclusive=True)
    async with opened(rabbit_server) as publisher:
        await publisher.publish(sample_message(other.name), sample_delivery())
        link = await publisher._connector.get(time.monotonic() + 1)
        lane = link.shared().result()
        async with suspended(rabbit_server, queue):
            waiting = asyncio.create_task(publisher.publish(sample_message(queue.name), sample_delivery()))
            sent = 1
            while not waiting.done():
                await publisher.publish(sample_message(other.name), sample_delivery())
                sent += 1
            with pytest.raises(
                Retryable, match=f"no confirm before the deadline for queue '{queue.name}'"
            ) as late:
                await waiting
            assert not late.value.unavailable
            await publisher.publish(sample_message(other.name), sample_delivery())
        assert await publisher._connector.get(time.monotonic() + 1) is link, "the connection is kept"
        assert link.shared().result() is not lane, "the channel is not"
        await publisher.publish(sample_message(queue.name), sample_delivery())
    assert sent > 1
    assert await count(channel, other) == sent + 1
    assert await count(channel, queue) == 2, "the late one, which may happen, and the last"


async def test_closed_in_mid_publish_ends_at_once_as_retryable(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    async with suspended(rabbit_server, queue), opened(rabbit_server, timeout=60) as publisher:
        batch = [sample_message(queue.name, id=number) for number in range(5)]
        waiting = asyncio.create_task(publisher.publish_batch(batch, [sample_delivery()] * 5))
        await asyncio.wait({waiting}, timeout=0.2)
        await publisher.close()
        outcomes = await asyncio.wait_for(waiting, 1)
        assert all(isinstance(outcome, Retryable) for outcome in outcomes), outcomes


async def test_a_connection_that_the_broker_closes_is_noticed_at_once(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    await asyncio.to_thread(add_user, rabbit_server, "goner", "pass-goner")
    async with opened(rabbit_server, login="goner:pass-goner", timeout=60) as publisher:
        async with suspended(rabbit_server, queue):
            waiting = asyncio.create_task(publisher.publish(sample_message(queue.name), sample_delivery()))
            await asyncio.wait({waiting}, timeout=0.1)
            await asyncio.to_thread(rabbit_server.control, "close_all_user_connections", "goner", "go away")
            with pytest.raises(Retryable, match=r"connection lost before the confirm") as failure:
                await asyncio.wait_for(waiting, 5)
            assert not failure.value.unavailable, "it was sent"
        await publisher.publish(sample_message(queue.name), sample_delivery())


async def test_an_alarm_ends_publishes_by_their_deadline_as_unavailable_and_sends_nothing_meanwhile(
    rabbit_server: RabbitServer, channel: aio_pika.abc.AbstractChannel, queue: aio_pika.abc.AbstractQueue
) -> None:
    def message(number: int) -> Any:
        return sample_message(queue.name, id=number)

    async with opened(rabbit_server) as publisher:
        await publisher.publish(message(0), sample_delivery())
        await asyncio.to_thread(rabbit_server.control, "set_vm_memory_high_watermark", "0")
        try:
            started = time.monotonic()
            outcomes: list[Exception | None] = []
            for number in range(1, 4):
                outcomes += await publisher.publish_batch([message(number)], [sample_delivery()])
            assert time.monotonic() - started < 3 * TIMEOUT + SLACK
        finally:
            await asyncio.to_thread(rabbit_server.control, "set_vm_memory_high_watermark", "0.9")
        for outcome in outcomes:
            assert isinstance(outcome, Retryable)
            assert "the broker blocks publishers (a memory or disk alarm)" in str(outcome)
            assert outcome.unavailable
        unsent = [number for number, outcome in enumerate(outcomes, 1) if "not sent" in str(outcome)]
        assert unsent == [2, 3], "the broker says that it blocks when it gets the first"
        await publisher.publish(message(4), sample_delivery())
    arrived = [as_received(await queue.get(no_ack=True)) for _ in range(await count(channel, queue))]
    numbers = [one.headers for one in arrived]
    assert len(numbers) in (2, 3), "the first of the alarm may come late; the others were never sent"


async def test_a_frozen_broker_with_full_buffers_ends_by_the_deadline_and_the_close_too(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    async with opened(rabbit_server) as publisher:
        await publisher.publish(sample_message(queue.name), sample_delivery())
        link = await publisher._connector.get(time.monotonic() + 1)
        rabbit_server.pause()
        try:
            started = time.monotonic()
            batch = [sample_message(queue.name, payload=b"x" * MAX_MESSAGE_BYTES) for _ in range(100)]
            for _ in range(2):
                outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 100)
                assert all(isinstance(outcome, Retryable) for outcome in outcomes)
            assert time.monotonic() - started < 2 * TIMEOUT + SLACK
            started = time.monotonic()
            await publisher.close()
            assert time.monotonic() - started < 1
            transport: Any = link._wire._transport
            assert transport.get_write_buffer_size() == 0, "dropped, not kept until it can be sent"
        finally:
            rabbit_server.resume()
        await publisher.open()
        await publisher.publish(sample_message(queue.name), sample_delivery())


async def test_a_connection_that_went_silent_is_replaced(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    with FaultProxy("127.0.0.1", rabbit_server.port) as proxy:
        async with opened(rabbit_server, port=proxy.port) as publisher:
            await publisher.publish(sample_message(queue.name), sample_delivery())
            proxy.mute()
            with pytest.raises(Retryable, match="no confirm before the deadline"):
                await publisher.publish(sample_message(queue.name), sample_delivery())
            proxy.heal()
            await publisher.publish(sample_message(queue.name), sample_delivery())
            assert proxy.connections == 2


def test_on_the_dispatchers_own_loop_it_delivers_gives_up_and_recovers(rabbit_server: RabbitServer) -> None:
    async def scenario() -> int:
        async with await rabbit_server.connect() as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("uvloop", exclusive=True)
            with FaultProxy("127.0.0.1", rabbit_server.port) as proxy:
                async with opened(rabbit_server, port=proxy.port) as publisher:
                    batch = [sample_message(queue.name, id=number) for number in range(30)]
                    assert await publisher.publish_batch(batch, [sample_delivery()] * 30) == [None] * 30
                    proxy.black_hole()
                    with pytest.raises(Retryable, match="no confirm before the deadline"):
                        await publisher.publish(sample_message(queue.name), sample_delivery())
                    proxy.heal()
                    await publisher.publish(sample_message(queue.name), sample_delivery())
            return await count(channel, queue)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # The black hole's own message may still arrive: what TCP has taken, it delivers.
        assert runner.run(scenario()) in (31, 32)


async def test_several_brokers_are_tried_in_turn(
    rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    with FaultProxy("127.0.0.1", rabbit_server.port) as refusing, FaultProxy("127.0.0.1", 1) as frozen:
        refusing.refuse()
        frozen.black_hole()
        hosts = f"127.0.0.1:{refusing.port},127.0.0.1:{frozen.port},127.0.0.1:{rabbit_server.port}"
        publisher = RabbitPublisher(f"amqp://{hosts}?timeout=1.5&routing_key={queue.name}")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
        nobody = RabbitPublisher(f"amqp://127.0.0.1:{refusing.port},127.0.0.1:{frozen.port}?timeout={TIMEOUT}")
        with pytest.raises(
            Retryable, match=r"Connect call failed.*; 127.0.0.1:\d+ did not answer in time"
        ) as down:
            await nobody.publish(sample_message(), sample_delivery())
        assert down.value.unavailable
        await nobody.close()


class TestTls:
    async def test_password_and_certificate(
        self, rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue
    ) -> None:
        await asyncio.to_thread(add_user, rabbit_server, CERTIFICATE_USER, "unused-password")
        rest = f"127.0.0.1:{rabbit_server.tls_port}?timeout=5&routing_key={queue.name}&ca={rabbit_server.ca}"
        for url in (f"amqps://guest:guest@{rest}", f"amqps://{rest}&cert={rabbit_server.client_certificate}"):
            publisher = RabbitPublisher(url)
            await publisher.publish(sample_message(), sample_delivery())
            await publisher.close()
        for _ in range(2):
            await queue.get(no_ack=True)

    async def test_an_unknown_authority_is_refused(self, rabbit_server: RabbitServer) -> None:
        publisher = RabbitPublisher(f"amqps://guest:guest@127.0.0.1:{rabbit_server.tls_port}?timeout=5")
        with pytest.raises(Retryable, match="CERTIFICATE_VERIFY_FAILED") as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        await publisher.close()


class TestSecrets:
    USER, PASSWORD = "alice-user", "hunter2/secret"

    async def test_never_in_repr_errors_or_logs(
        self, rabbit_server: RabbitServer, shown: Shown, caplog: pytest.LogCaptureFixture
    ) -> None:
        await asyncio.to_thread(add_user, rabbit_server, self.USER, self.PASSWORD, write="")
        for login in (f"{self.USER}:{quote(self.PASSWORD, safe='')}", f"{self.USER}:hunter2wrong"):
            for query in ("", "&exchange=nowhere"):
                async with opened(rabbit_server, query, login=login, timeout=5) as publisher:
                    for _ in range(2):
                        await shown.publish(publisher)
        with FaultProxy("127.0.0.1", rabbit_server.port) as proxy:
            login = f"{self.USER}:{quote(self.PASSWORD, safe='')}"
            async with opened(rabbit_server, login=login, port=proxy.port) as publisher:
                for _ in range(2):
                    await shown.publish(publisher)
                proxy.refuse()
                for _ in range(2):
                    await shown.publish(publisher)
        everything = shown.everything()
        assert "ACCESS_REFUSED" in everything
        assert "hunter2" not in everything
        assert self.USER not in everything
        assert not [record for record in caplog.records if record.name.startswith("aiormq")], (
            "it is quiet about us"
        )

    async def test_a_password_from_a_file_is_read_anew_at_each_connection(
        self, rabbit_server: RabbitServer, queue: aio_pika.abc.AbstractQueue, tmp_path: Any
    ) -> None:
        path = tmp_path / "password"
        path.write_text("wrong-password\n")
        url = (
            f"amqp://guest@127.0.0.1:{rabbit_server.port}?password_file={path}&routing_key={queue.name}&timeout=5"
        )
        publisher = RabbitPublisher(url)
        with pytest.raises(Retryable, match="ACCESS_REFUSED"):
            await publisher.publish(sample_message(), sample_delivery())
        path.write_text("guest\n")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()


def test_the_clients_logs_for_others_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    RabbitPublisher("amqp://127.0.0.1")
    caplog.set_level(logging.WARNING)
    logging.getLogger("aiormq.connection").warning("of somebody else")
    assert "of somebody else" in caplog.text
