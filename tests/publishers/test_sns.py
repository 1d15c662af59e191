"""SNS on a moto server, read through an SQS queue that is subscribed to the topic."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager

import pytest

from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.aws.sns import DEFAULT_MAX_BYTES, SnsPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.in_use import in_use
from tests.publishers.moto_server import ACCOUNT, REGION, MotoServer, attributes_of, aws_environment, decoded


@pytest.fixture
def moto(shared_moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> MotoServer:
    """Return a server with two topics, ``events`` and ``events.fifo``, and a queue for each."""
    aws_environment(monkeypatch)
    shared_moto.start()
    shared_moto.create_topic("events", "orders")
    shared_moto.create_topic("events.fifo", "orders.fifo")
    return shared_moto


def opened(moto: MotoServer, topic: str = "events", query: str = "") -> AbstractAsyncContextManager[SnsPublisher]:
    return in_use(SnsPublisher(f"sns://{REGION}/{ACCOUNT}/{topic}?endpoint={moto.url}&timeout=10{query}"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sns://eu-west-1/events", "name the account, like sns://region/123456789012/topic"),
        ("sns://eu-west-1/123456789012/", "it must be like sns://region/account/name"),
        ("sns://eu-west-1/arn:aws:sns:eu-west-1:123456789012:events", "it must be like"),
        ("sns://eu-west-1/123456789012/events?max_bytes=2000000", "max_bytes must be"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SnsPublisher(url)


async def test_a_subscriber_gets_payload_attributes_and_headers(moto: MotoServer) -> None:
    headers = {f"h{number}": "x" for number in range(30)} | {"traceparent": "00-1-2-01", "tracestate": "a=b"}
    messages = [
        sample_message("order.paid", payload, headers=headers) for payload in (b'{"a": 1}', b"\x00\xff", b"")
    ]
    async with opened(moto) as publisher:
        assert await publisher.publish_batch(messages, [sample_delivery(token=7)] * 3) == [None] * 3
    stored = {decoded(one).message_id: one for one in moto.drained("orders")}
    for message in messages:
        one = stored[message.message_id]
        attributes = attributes_of(one)
        assert decoded(one).payload == message.payload
        assert len(attributes) <= 7, "SNS drops for raw subscribers what has more than ten"
        assert attributes["Fencepost-Event-Type"] == "order.paid"
        assert json.loads(attributes["Fencepost-Headers"])["Fencepost-Token"] == "7"


async def test_fifo_groups_by_key(moto: MotoServer) -> None:
    keyed, free = sample_message(ordering_key="a b"), sample_message()
    async with opened(moto, "events.fifo") as publisher:
        for attempt in (1, 2):
            await publisher.publish(keyed, sample_delivery(attempt=attempt))
        await publisher.publish(free, sample_delivery())
    stored = [one["Attributes"] for one in moto.drained("orders.fifo")]
    groups = {one["MessageDeduplicationId"]: one["MessageGroupId"] for one in stored}
    assert len(stored) == 2
    assert groups == {str(keyed.message_id): "a%20b", str(free.message_id): str(free.message_id)}


async def test_too_large_is_permanent_before_it_is_sent(moto: MotoServer) -> None:
    async with opened(moto) as publisher:
        with pytest.raises(Permanent, match=r"the limit is 262144 \(\?max_bytes=\)"):
            await publisher.publish(sample_message(payload=b"x" * DEFAULT_MAX_BYTES), sample_delivery())


async def test_a_failed_entry_is_its_own_and_stops_its_key(moto: MotoServer) -> None:
    # moto takes 256 KiB whatever the topic allows, and says so entry by entry.
    sizes = (10, 300_000, 10, 10)
    keys = ("k", "k", "k", None)
    batch = [
        sample_message(id=number, payload=b"x" * size, ordering_key=key)
        for number, (size, key) in enumerate(zip(sizes, keys, strict=True))
    ]
    async with opened(moto, "events.fifo", "&max_bytes=1048576") as publisher:
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 4)
    assert isinstance(outcomes[1], Permanent)
    assert "InvalidParameter" in str(outcomes[1])
    assert [outcome is None for outcome in outcomes] == [True, False, False, True]
    assert len(moto.drained("orders.fifo")) == 2


async def test_a_missing_topic_is_named(moto: MotoServer) -> None:
    async with opened(moto, "nowhere") as publisher:
        with pytest.raises(Retryable, match=r"topic 'nowhere' in eu-west-1: .* create it") as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        moto.create_topic("nowhere", "orders")
        await publisher.publish(sample_message(), sample_delivery())
