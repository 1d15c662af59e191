"""Kafka: order under injected broker errors, sizes, missing topics, a full buffer, keys and headers, secrets."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from fencepost.core.records import Message
from fencepost.embedded.ports import free_port
from fencepost.errors import Permanent, Retryable
from fencepost.publishers.kafka.options import Order
from fencepost.publishers.kafka.publisher import KafkaPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.in_use import in_use
from tests.publishers.kafka_server import MockCluster, TansuServer, create_topics, headers_of, stored

TIMEOUT = 4.0

Outcomes = Sequence[Exception | None]


@pytest.fixture(scope="module")
def tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TansuServer]:
    """A broker for the tests that do not stop it; each uses a topic of its own."""
    with TansuServer(tmp_path_factory.mktemp("tansu")) as server:
        yield server


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[MockCluster]:
    cluster = MockCluster()
    yield cluster
    del cluster
    gc.collect()


def opened(
    address: str, query: str = "", *, timeout: float = TIMEOUT
) -> AbstractAsyncContextManager[KafkaPublisher]:
    return in_use(KafkaPublisher(f"kafka://{address}?timeout={timeout}{query}"))


async def batch(publisher: KafkaPublisher, messages: Sequence[Message]) -> Outcomes:
    return await publisher.publish_batch(messages, [sample_delivery() for _ in messages])


def of_key(key: str | None, count: int, size: int = 10) -> list[Message]:
    return [sample_message(id=number, ordering_key=key, payload=b"x" * size) for number in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.message_id) for message in messages]


async def read(address: str, topic: str) -> list[str]:
    """Return the message ids that a topic holds, in order."""
    found = await asyncio.to_thread(stored, address, topic)
    return [headers_of(message)["Fencepost-Message-Id"] for message in found]


class TestOrderUnderErrors:
    """C14: the broker fails the first request of a batch, and accepts the next ones."""

    # One message a request, or librdkafka would put the whole batch into the first one.
    ONE_EACH = "&rdkafka.batch.num.messages=1"
    ONE_REQUEST = "&rdkafka.linger.ms=50"
    IN_PASSING = (
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )

    async def test_nothing_of_a_key_is_stored_behind_a_request_that_failed(
        self, mock_cluster: MockCluster
    ) -> None:
        for attempt in range(5):
            topic = f"gap-{attempt}"
            mock_cluster.create(topic)
            async with opened(mock_cluster.address, f"&topic={topic}{self.ONE_EACH}") as publisher:
                known, messages = of_key("k", 2), of_key("k", 6)
                assert list(await batch(publisher, known)) == [None] * 2
                # As a broker does: what is behind a request that it refused leaves a gap, and is refused as well.
                gap = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
                mock_cluster.refuse(KafkaError.TOPIC_AUTHORIZATION_FAILED, gap)
                outcomes = await batch(publisher, messages)
                mock_cluster.refuse_nothing()
                assert all(isinstance(outcome, Retryable) for outcome in outcomes), outcomes
                assert "grant" in str(outcomes[0])
                assert list(await batch(publisher, messages)) == [None] * 6, "the publisher goes on"
            assert await read(mock_cluster.address, topic) == ids([*known, *messages])

    @pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD])
    async def test_what_is_refused_for_good_stops_its_key(self, mock_cluster: MockCluster, code: int) -> None:
        topic = f"for-good-{code}"
        mock_cluster.create(topic)
        async with opened(mock_cluster.address, f"&topic={topic}{self.ONE_REQUEST}") as publisher:
            known, messages = of_key("k", 2), of_key("k", 6)
            assert list(await batch(publisher, known)) == [None] * 2
            mock_cluster.refuse(code, code)  # and again, where it is sent again alone
            outcomes = await batch(publisher, messages)
            mock_cluster.refuse_nothing()
            assert isinstance(outcomes[0], Permanent), outcomes
            assert all(isinstance(outcome, Retryable) for outcome in outcomes[1:]), outcomes
            assert await read(mock_cluster.address, topic) == ids(known)
            others = [*messages[1:], *of_key(None, 2)]
            assert list(await batch(publisher, others)) == [None] * 7

    async def test_the_first_of_a_key_goes_alone_through_a_new_client(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("alone")
        async with opened(mock_cluster.address, f"&topic=alone{self.ONE_EACH}") as publisher:
            messages = of_key("k", 6)
            mock_cluster.refuse(
                KafkaError.TOPIC_AUTHORIZATION_FAILED
            )  # the next one would be taken: no gap is seen
            assert all(isinstance(outcome, Retryable) for outcome in await batch(publisher, messages))
        assert await read(mock_cluster.address, "alone") == []

    @pytest.mark.parametrize("code", IN_PASSING)
    async def test_what_the_client_repeats_keeps_its_place(self, mock_cluster: MockCluster, code: int) -> None:
        topic = f"in-passing-{code}"
        mock_cluster.create(topic)
        async with opened(mock_cluster.address, f"&topic={topic}{self.ONE_EACH}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            messages = [*of_key("k", 6), *of_key("other", 6), *of_key(None, 3)]
            mock_cluster.refuse(code)
            assert list(await batch(publisher, messages)) == [None] * 15
            mock_cluster.refuse_nothing()
            found = await read(mock_cluster.address, topic)
            for key in ("k", "other"):
                expected = ids([message for message in messages if message.ordering_key == key])
                assert [each for each in found if each in expected] == [e for e in expected if e in found]

    async def test_a_failure_of_one_key_stops_no_other(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("spared")
        async with opened(mock_cluster.address, f"&topic=spared{self.ONE_REQUEST}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            await batch(publisher, [*of_key("k", 2), *of_key("other", 2)])
            messages = [*of_key("k", 4), *of_key("other", 4), *of_key(None, 2)]
            mock_cluster.refuse(KafkaError.INVALID_RECORD)
            outcomes = await batch(publisher, messages)
            # Sent again alone, the refused one was taken: the mock refuses once.
            assert list(outcomes) == [None] * 10
            found = await read(mock_cluster.address, "spared")
            assert [each for each in found if each in ids(messages[:4])] == ids(messages[:4])

    async def test_a_producer_that_is_out_of_step_is_replaced(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("out-of-step")
        async with opened(mock_cluster.address, "&topic=out-of-step") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            mock_cluster.refuse(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
            with pytest.raises(Retryable, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
                await publisher.publish(sample_message(), sample_delivery())
            message = sample_message()
            await publisher.publish(message, sample_delivery())
        assert str(message.message_id) in await read(mock_cluster.address, "out-of-step")

    async def test_a_batch_of_one_key_takes_few_requests(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("hot")
        async with opened(mock_cluster.address, "&topic=hot") as publisher:
            await batch(publisher, of_key("k", 2))  # from now on several at once
            mock_cluster.delay(50)
            try:
                started = time.monotonic()
                assert list(await batch(publisher, of_key("k", 100))) == [None] * 100
                assert time.monotonic() - started < 100 * 0.05 / 5, "as slow as one by one"
            finally:
                mock_cluster.delay(0)

    async def test_different_topics_of_one_key_go_one_after_another(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("there")
        async with opened(mock_cluster.address) as publisher:
            await publisher.publish(sample_message("there"), sample_delivery())
            types = ("there", "there", "not-there", "there")
            messages = [sample_message(each, id=n, ordering_key="k") for n, each in enumerate(types)]
            outcomes = await batch(publisher, messages)
            assert outcomes[:2] == [None, None]
            assert "no topic 'not-there'" in str(outcomes[2])
            assert outcomes[3] is not None
        assert str(messages[3].message_id) not in await read(mock_cluster.address, "there")


class TestDeadline:
    async def test_at_the_deadline_nothing_is_kept_to_be_sent_later(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("late")
        async with opened(mock_cluster.address, "&topic=late", timeout=3) as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            await batch(publisher, of_key("k", 2))
            before = len(await read(mock_cluster.address, "late"))
            mock_cluster.refuse(*[KafkaError.NOT_ENOUGH_REPLICAS] * 1000)
            started = time.monotonic()
            outcomes = await batch(publisher, [*of_key("k", 20), *of_key("other", 20), *of_key(None, 5)])
            assert time.monotonic() - started < 3.5
            assert all(isinstance(outcome, Retryable) for outcome in outcomes), outcomes
            mock_cluster.refuse_nothing()
            message = sample_message()
            await publisher.publish(message, sample_delivery())
            assert (await read(mock_cluster.address, "late"))[before:] == ids([message])

    async def test_an_answer_that_comes_too_late_is_retryable(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("slow")
        async with opened(mock_cluster.address, "&topic=slow", timeout=1.5) as publisher:
            await batch(publisher, [*of_key("k", 2), *of_key(None, 2)])
            mock_cluster.delay(2_500)
            try:
                outcomes = await batch(publisher, [*of_key("k", 3), *of_key(None, 3)])
            finally:
                mock_cluster.delay(0)
            assert all(isinstance(outcome, Retryable) for outcome in outcomes)
            assert "may be stored" in str(outcomes[0])
            assert not any(isinstance(outcome, Retryable) and outcome.unavailable for outcome in outcomes)

    async def test_no_broker_is_said_to_be_unavailable(self) -> None:
        async with opened(f"127.0.0.1:{free_port()}", "&topic=t", timeout=1) as publisher:
            with pytest.raises(Retryable, match="refused") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable
            outcomes = await batch(publisher, of_key("k", 3))
            assert all(isinstance(outcome, Retryable) for outcome in outcomes)

    async def test_close_fails_what_is_in_flight_within_a_second(self, mock_cluster: MockCluster) -> None:
        mock_cluster.create("closing")
        async with opened(mock_cluster.address, "&topic=closing") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            mock_cluster.delay(3_000)
            try:
                running = asyncio.create_task(batch(publisher, [*of_key("k", 3), *of_key(None, 3)]))
                await asyncio.sleep(0)  # begun, nothing handed over yet
                started = time.monotonic()
                await publisher.close()
                outcomes = await running
                assert time.monotonic() - started < 1.0
            finally:
                mock_cluster.delay(0)
            assert all(isinstance(outcome, Retryable) for outcome in outcomes)


class TestBuffer:
    """C38: a thousand events, a buffer of ten."""

    QUERY = "&topic=buffer&rdkafka.queue.buffering.max.messages=10"

    async def test_a_full_buffer_is_waited_for(self, tansu: TansuServer) -> None:
        create_topics(tansu.address, "buffer")
        async with opened(tansu.address, self.QUERY) as publisher:
            messages = [sample_message(id=number) for number in range(1000)]
            half = await batch(publisher, messages[:500])
            rest = await asyncio.gather(*(publisher.publish(each, sample_delivery()) for each in messages[500:]))
            assert [*half, *rest] == [None] * 1000
        assert sorted(await read(tansu.address, "buffer")) == sorted(ids(messages))

    async def test_a_full_buffer_that_does_not_drain_is_retryable(self) -> None:
        async with opened(f"127.0.0.1:{free_port()}", self.QUERY, timeout=1) as publisher:
            started = time.monotonic()
            outcomes = await batch(publisher, [sample_message(id=number) for number in range(1000)])
            assert time.monotonic() - started < 1.5
            assert all(isinstance(outcome, Retryable) for outcome in outcomes)
            assert any("not sent" in str(outcome) for outcome in outcomes)


class TestRecords:
    async def test_key_headers_and_payload(self, tansu: TansuServer) -> None:
        create_topics(tansu.address, "records")
        keyed = sample_message(ordering_key="a/б", aggregate_id="7", headers={"x": "a\r\nb", "content-type": "no"})
        messages = [
            keyed,
            sample_message(ordering_key="", aggregate_id="7"),
            sample_message(aggregate_id="7"),
            sample_message(aggregate_id="", payload=b""),
            sample_message(aggregate_id=None),
        ]
        async with opened(tansu.address, "&topic=records&compression=gzip") as publisher:
            assert list(await batch(publisher, messages)) == [None] * 5
        found = {headers_of(each)["Fencepost-Message-Id"]: each for each in stored(tansu.address, "records")}
        arrived = [found[str(message.message_id)] for message in messages]
        assert [each.key() for each in arrived] == ["a/б".encode(), b"", b"7", b"", None]
        assert arrived[3].value() == b"", "empty is not a tombstone"
        headers = headers_of(arrived[0])
        assert headers["x"] == "a%0D%0Ab"
        assert headers["Fencepost-Header-content-type"] == "no"

    async def test_a_key_stays_in_its_partition(self, tansu: TansuServer) -> None:
        create_topics(tansu.address, "partitions", partitions=4)
        async with opened(tansu.address, "&topic=partitions") as publisher:
            messages = [sample_message(id=n, aggregate_id=f"k{n % 8}") for n in range(80)]
            assert list(await batch(publisher, messages)) == [None] * 80
        places: dict[bytes | None, set[int | None]] = {}
        for each in stored(tansu.address, "partitions"):
            places.setdefault(each.key(), set()).add(each.partition())
        assert len(places) == 8
        assert all(len(numbers) == 1 for numbers in places.values())
        assert len({number for numbers in places.values() for number in numbers}) > 1

    async def test_too_large_for_the_client_is_permanent_for_that_message_alone(self, tansu: TansuServer) -> None:
        create_topics(tansu.address, "large")
        async with opened(tansu.address, "&topic=large&rdkafka.message.max.bytes=2000") as publisher:
            messages = [*of_key("k", 2), *of_key("k", 1, 3_000), *of_key("k", 1), *of_key(None, 3)]
            for _ in range(2):  # the second time the topic is known, so that several of a key go at once
                outcomes = await batch(publisher, messages)
                assert [each is None for each in outcomes] == [True, True, False, False, True, True, True]
                assert isinstance(outcomes[2], Permanent)
                assert isinstance(outcomes[3], Retryable)

    async def test_too_large_for_the_broker_is_permanent_for_that_message_alone(
        self, mock_cluster: MockCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        mock_cluster.create("strict-broker")
        async with opened(mock_cluster.address, "&topic=strict-broker&rdkafka.linger.ms=20") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            size = KafkaError.MSG_SIZE_TOO_LARGE
            mock_cluster.refuse(size, size)  # the request, then the first message alone
            messages = of_key(None, 5)
            outcomes = await batch(publisher, messages)
            assert isinstance(outcomes[0], Permanent)
            assert outcomes[1:] == [None] * 4
        assert caplog.text.count("sent again one by one") == 1

    async def test_a_missing_topic_is_named_and_not_created(self, tansu: TansuServer) -> None:
        async with opened(tansu.address) as publisher:
            for _ in range(2):
                with pytest.raises(Retryable, match=r"there is no topic 'order_20made': create it") as failure:
                    await publisher.publish(sample_message("order made"), sample_delivery())
                assert not failure.value.unavailable
            create_topics(tansu.address, "order_20made")
            deadline = time.monotonic() + 10
            while True:  # librdkafka looks again every second
                try:
                    await publisher.publish(sample_message("order made"), sample_delivery())
                except Retryable:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)  # between two looks at the condition
                else:
                    break
        assert len(await read(tansu.address, "order_20made")) == 1


async def test_the_loop_is_woken_far_less_often_than_messages_arrive(
    tansu: TansuServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(tansu.address, "wakes")
    loop = asyncio.get_running_loop()
    wakes = 0
    original = loop.call_soon_threadsafe

    def counted(*args: object, **options: object) -> object:
        nonlocal wakes
        wakes += 1
        return original(*args, **options)  # type: ignore[arg-type]  # handed on as it came

    async with opened(tansu.address, "&topic=wakes") as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        for _ in range(10):
            assert list(await batch(publisher, of_key(None, 500))) == [None] * 500
        monkeypatch.undo()
    assert wakes < 1_000, "5,000 messages"


async def test_a_cancelled_batch_of_one_key_is_taken_back(mock_cluster: MockCluster) -> None:
    mock_cluster.create("cancelled")
    async with opened(mock_cluster.address, "&topic=cancelled") as publisher:
        await batch(publisher, of_key("k", 2))
        mock_cluster.refuse(*[KafkaError.NOT_ENOUGH_REPLICAS] * 1000)
        running = asyncio.create_task(batch(publisher, of_key("k", 5)))
        await asyncio.wait({running}, timeout=0.2)
        running.cancel()
        await asyncio.wait({running})
        assert Order.STRICT not in publisher._clients
        mock_cluster.refuse_nothing()
        assert list(await batch(publisher, of_key("k", 5))) == [None] * 5


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_refused_login_is_said_at_once(tmp_path: Path, mechanism: str) -> None:
    with TansuServer(tmp_path, "--authentication") as server:
        async with opened(server.address.replace("127", "nobody:hunter2-secret@127"), f"&sasl={mechanism}") as it:
            for _ in range(2):
                started = time.monotonic()
                with pytest.raises(Retryable, match="AUTHENTICATION") as failure:
                    await it.publish(sample_message(), sample_delivery())
                assert failure.value.unavailable
                assert time.monotonic() - started < TIMEOUT / 2
                assert "hunter2" not in str(failure.value)


async def test_librdkafka_logs_quietly_and_without_secrets(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    password = tmp_path / "password"
    password.write_text("hunter2-secret\n")
    url = (
        f"kafka://alice-user@127.0.0.1:{free_port()}?timeout=1&topic=t&sasl=PLAIN&password_file={password}"
        "&rdkafka.ssl.key.password=hunter2-key&rdkafka.debug=broker,security"
    )
    publisher = KafkaPublisher(url)
    await publisher.open()
    texts = [repr(publisher)]
    for _ in range(2):
        with pytest.raises(Retryable) as failure:
            await publisher.publish(sample_message(), sample_delivery())
        texts.append(str(failure.value))
    await publisher.close()
    loud = [each for each in caplog.records if each.levelno >= logging.INFO and "librdkafka" in each.message]
    assert 0 < len(loud) < 6, "a connection that is refused is tried again many times"
    everything = "\n".join([*texts, caplog.text])
    assert "hunter2" not in everything
    assert "alice-user" not in everything
