"""MQTT 5 against a real mosquitto: packets, topics, refusals, ended connections, secrets."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from fencepost.embedded.ports import free_port
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.mqtt import link as mqtt_link
from fencepost.publishers.mqtt import packets as mqtt_packets
from fencepost.publishers.mqtt.publisher import MAX_TOPIC_BYTES, MqttPublisher, topic_for
from fencepost.publishers.template import Template
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.fault_proxy import FaultProxy
from fencepost.testing.publisher_conformance import FREE_TEXTS
from tests.acceptor import Acceptor
from tests.publishers.in_use import Shown, in_use
from tests.publishers.mosquitto_server import MosquittoServer, MqttProperties, read_all

TIMEOUT = 0.4
SLACK = 1.0

Start = Callable[..., MosquittoServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker with further settings."""
    with ExitStack() as servers:
        yield lambda *settings: servers.enter_context(MosquittoServer(tmp_path / "broker", *settings))


def opened(
    server: MosquittoServer, query: str = "", *, login: str = "", timeout: float = TIMEOUT, port: int = 0
) -> AbstractAsyncContextManager[MqttPublisher]:
    return in_use(MqttPublisher(f"mqtt://{login}127.0.0.1:{port or server.port}?timeout={timeout}{query}"))


async def subscribe(server: MosquittoServer, topics: str = "order/#", **login: str) -> None:
    """Let the broker keep everything for a reader; `arrived` reads it."""
    async with server.client("reader", **login) as client:
        await client.subscribe(topics, qos=1)


async def arrived(server: MosquittoServer, topics: str = "order/#") -> list[int]:
    """Return the row ids that arrived, for messages whose key is their number."""
    return [int(one.key or -1) for one in await read_all(server, "reader", topics)]


def numbered(number: int, event_type: str = "order.created", payload: bytes = b"{}") -> Any:
    return sample_message(event_type, payload, id=number, aggregate_id=str(number))


class TestTopic:
    @pytest.mark.parametrize(
        ("template", "event_type", "topic"),
        [
            ("{event_type}", "order.created", "order/created"),
            ("{event_type}", "", "_"),
            ("{event_type}", ".", "_/_"),
            ("{event_type}", "a..b.", "a/_/b/_"),
            ("{event_type}", "a b+c#d%e$f/g", "a%20b%2Bc%23d%25e%24f%2Fg"),
            ("{event_type}", "é\r\n\x00\t", "%C3%A9%0D%0A%00%09"),
            ("{event_type}", "$SYS.broker", "%24SYS/broker"),
            ("shop/{event_type}/v1", "order.paid", "shop/order/paid/v1"),
            ("{queue}/{aggregate_type}/{aggregate_id}/{key}", "x", "a.q/order/4.2/4.2"),
        ],
    )
    def test_documented_rule(self, template: str, event_type: str, topic: str) -> None:
        message = sample_message(event_type, queue="a.q", aggregate_id="4.2")
        assert topic_for(Template(template, "?topic="), message) == topic

    @given(st.text(max_size=400))
    def test_any_text_gives_a_topic_that_brokers_accept(self, text: str) -> None:
        message = sample_message(text, queue=text, aggregate_id=text)
        for template in ("{event_type}", "e/{event_type}/{queue}/{key}"):
            topic = topic_for(Template(template, "?topic="), message)
            assert len(topic.encode()) <= MAX_TOPIC_BYTES
            assert all("!" <= char <= "~" and char not in "+#$" for char in topic)
            assert all(topic.split("/"))

    def test_long_topics_are_cut_and_stay_distinct(self) -> None:
        template = Template("{event_type}", "?topic=")
        one, two = (topic_for(template, sample_message("x" * 800 + end)) for end in "ab")
        assert len(one) == len(two) == MAX_TOPIC_BYTES
        assert one != two


def property_block(kind: int, **values: object) -> bytes:
    """Return properties as paho-mqtt writes them, with their length before them."""
    properties = MqttProperties(kind)
    for name, value in values.items():
        setattr(properties, name, value)
    return bytes(properties.pack())


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def feed(stream: bytes, step: int = 10**6) -> list[tuple[str, int, str | None]]:
    packets = mqtt_packets.Packets()
    return [
        (type(found).__name__, answer.code, answer.said)
        for at in range(0, len(stream), step)
        for found, answer in packets.feed(stream[at : at + step])
    ]


class TestPackets:
    @given(st.integers(1, 9))
    def test_packets_are_found_however_they_are_cut(self, step: int) -> None:
        puback = b"\x00\x07\x87" + property_block(PacketTypes.PUBACK, ReasonString="no é")
        stream = packet(0x40, b"\x00\x01") + packet(0x40, puback) + packet(0xD0, b"") + packet(0xE0, b"\x8b")
        assert feed(stream, step) == [
            ("PubAckPacket", 0, None),
            ("PubAckPacket", 0x87, "no é"),
            ("PingRespPacket", 0, None),
            ("DisconnectPacket", 0x8B, None),
        ]

    @pytest.mark.parametrize("code", [0x95, 0x9B, 0xA5, 0xFF, 0x01])
    def test_a_reason_that_the_standard_does_not_list_for_a_packet_is_kept(self, code: int) -> None:
        short = packet(0x40, bytes([0, 7, code]))
        long = b"\x00\x07" + bytes([code]) + property_block(PacketTypes.PUBACK, ReasonString="x" * 200)
        stream = short + bytes([0x40, len(long) & 0x7F | 0x80, len(long) >> 7]) + long
        stream += packet(0x20, bytes([0, code, 0])) + packet(0xE0, bytes([code]))
        for step in (1, 10**6):
            assert feed(stream, step) == [
                ("PubAckPacket", code, None),
                ("PubAckPacket", code, "x" * 200),
                ("ConnAckPacket", code, None),
                ("DisconnectPacket", code, None),
            ]

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            (0x95, "packet too large (0x95): why"),
            (0x86, "bad user name or password (0x86): why"),
            (0x10, "no matching subscribers (0x10): why"),
            (0xA5, "reason (0xA5): why"),
        ],
    )
    def test_reasons_have_names(self, code: int, text: str) -> None:
        assert str(mqtt_packets.Answer(code, "why")) == text

    @pytest.mark.parametrize(
        "data",
        [
            b"\x40\xff\xff\xff\xff\x01",
            b"\x00\x00",
            b"\x40\x01\x00",
            b"\x40\x04\x00\x01\x87\x7f",
            b"\x40\x07\x00\x01\xa5\x03\x7f\x00\x01",
            b"\xd0\x01\x00",
            b"\x20\x02\x00\x00",
        ],
    )
    def test_what_cannot_be_read_is_malformed(self, data: bytes) -> None:
        with pytest.raises(mqtt_packets.Malformed):
            feed(data)

    # mqtt5 panics, and says so in three ways.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("code", [0x87, 0xA5])
    def test_text_that_is_not_utf_8_is_malformed(self, code: int) -> None:
        with pytest.raises(mqtt_packets.Malformed):
            feed(packet(0x40, bytes([0, 1, code, 5, 0x1F, 0, 2, 0xFF, 0xFE])))

    @given(st.binary(max_size=40))
    def test_garbage_is_malformed_and_nothing_else(self, data: bytes) -> None:
        with suppress(mqtt_packets.Malformed):
            feed(data)

    @pytest.mark.parametrize(
        ("topic", "content_type", "headers"),
        [
            ("x" * 65_536, None, []),
            ("a", "x" * 65_536, []),
            ("a", None, [("x", "é" * 32_768)]),
            ("a", None, [("x", "\ud800")]),
        ],
    )
    def test_what_mqtt_cannot_carry_is_permanent(
        self, topic: str, content_type: str | None, headers: list[tuple[str, str]]
    ) -> None:
        with pytest.raises(Permanent, match="MQTT cannot carry the message"):
            mqtt_packets.publish(topic, 1, b"", content_type, headers)

    def test_a_payload_larger_than_mqtt_has_is_permanent(self) -> None:
        with pytest.raises(Permanent, match="MQTT can carry 267386880"):
            mqtt_packets.publish("a", 1, bytes(mqtt_packets.MAX_PAYLOAD_BYTES + 1), None, [])

    @pytest.mark.parametrize(("user", "password"), [("u" * 65_536, None), ("\udcff", "p"), ("u", "p" * 65_536)])
    def test_a_login_that_cannot_be_sent_says_so_without_showing_it(self, user: str, password: str | None) -> None:
        with pytest.raises(ConnectionError, match="user name and password can have") as refused:
            mqtt_packets.connect("id", 30, user, password)
        assert len(str(refused.value)) < 100

    def test_a_password_that_is_not_utf_8_goes_as_its_bytes(self) -> None:
        assert mqtt_packets.connect("id", 30, "u", "\udcff\udcfe").endswith(b"\x00\x02\xff\xfe")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mqtt:///", "name the broker"),
        ("mqtt://h/topic", "has no path"),
        ("mqtt://h?topic=", "topic"),
        ("mqtt://h?topic={nope}", "fields are"),
        ("mqtt://h?topic=a/%23", "cannot hold"),
        ("mqtt://h?topic=a%2Bb", "cannot hold"),
        ("mqtt://h?topic=/a", "empty level"),
        ("mqtt://h?topic=a//{key}", "empty level"),
        ("mqtt://h?qos=0", "unknown option 'qos'"),
        ("mqtt://h?require_subscriber=yes", "on or off"),
        ("mqtt://h?client_id=", "client_id"),
        ("mqtt://h?cert=x.pem", "cert need mqtts://"),
    ],
)
def test_urls_that_cannot_work_are_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MqttPublisher(url)


async def test_a_client_gets_topic_properties_and_headers(start: Start) -> None:
    server = start()
    message = sample_message(headers={"tenant": "é"}, content_type="application/json")
    async with server.client() as client, opened(server) as publisher:
        await client.subscribe("order/+", qos=1)
        await publisher.publish(message, sample_delivery(token=7))
        received = await anext(aiter(client.messages))
    assert received.topic.value == "order/created"
    assert received.qos == 1
    properties: Any = received.properties
    assert properties.ContentType == "application/json"
    headers = dict(properties.UserProperty)
    assert headers["Fencepost-Message-Id"] == str(message.message_id)
    assert headers["Fencepost-Token"] == "7"
    assert headers["tenant"] == "%C3%A9"
    assert "Content-Type" not in headers


async def test_what_nobody_has_subscribed_to_is_retryable_and_delivered_once_somebody_has(start: Start) -> None:
    server = start()
    await server.ready()
    async with opened(server) as publisher:
        with pytest.raises(
            Retryable, match=r"nobody has subscribed to topic 'order/created'.*: subscribe"
        ) as failure:
            await publisher.publish(numbered(1), sample_delivery())
        assert not failure.value.unavailable
        await subscribe(server)
        await publisher.publish(numbered(2), sample_delivery())
    assert await arrived(server) == [2]


async def test_nobody_may_be_there_where_the_operator_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    await server.ready()
    async with opened(server, "&require_subscriber=off") as publisher:
        batch = [numbered(1), numbered(2), numbered(3, "order.paid")]
        assert await publisher.publish_batch(batch, [sample_delivery()] * 3) == [None] * 3
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2, "once for each topic"
    assert "nobody has subscribed to topic 'order/created'" in warnings[0]


async def test_a_batch_larger_than_the_receive_maximum_arrives_in_order(start: Start) -> None:
    server = start("max_inflight_messages 3")
    await subscribe(server)
    batch = [numbered(number) for number in range(100)]
    async with opened(server, timeout=5) as publisher:
        assert await publisher.publish_batch(batch, [sample_delivery()] * 100) == [None] * 100
        link = await publisher._connector.get(time.monotonic() + 1)
        assert link._room._value == 3
    assert await arrived(server) == list(range(100))


async def test_free_text_beside_twenty_good_ones(start: Start) -> None:
    server = start()
    await subscribe(server)
    odd = [sample_message(text, aggregate_id=text, headers={"x": text}) for text in FREE_TEXTS.values()]
    good = [numbered(number) for number in range(20)]
    async with opened(server, timeout=5) as publisher:
        outcomes = await publisher.publish_batch([*odd, *good], [sample_delivery()] * (len(odd) + 20))
    assert all("nobody has subscribed" in str(outcome) for outcome in outcomes[: len(odd)])
    assert outcomes[len(odd) :] == [None] * 20
    assert await arrived(server) == list(range(20))


class TestTooLarge:
    async def test_the_size_check_is_exact(self, start: Start) -> None:
        server = start("max_packet_size 50000")
        await subscribe(server)
        async with opened(server) as publisher:
            with pytest.raises(Permanent, match=r"the broker accepts 50000 \(maximum packet size\)") as refused:
                await publisher.publish(numbered(1, payload=b"x" * 50_000), sample_delivery())
            sent = int(str(refused.value).split(" is ")[1].split(" bytes")[0])
            await publisher.publish(numbered(2, payload=b"x" * (100_000 - sent)), sample_delivery())
            with pytest.raises(Permanent):
                await publisher.publish(numbered(3, payload=b"x" * (100_001 - sent)), sample_delivery())
            link = await publisher._connector.get(time.monotonic() + 1)
            assert link._room._value == 20, "what was not sent takes no part of the Receive Maximum"
        assert await arrived(server) == [2]

    async def test_what_mqtt_cannot_carry_spares_the_neighbours(self, start: Start) -> None:
        server = start()
        await subscribe(server)
        batch = [numbered(number) for number in range(30)]
        batch[10] = sample_message(id=10, aggregate_id="10", content_type="x" * 70_000)
        async with opened(server, timeout=5) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 30)
        assert [place for place, outcome in enumerate(outcomes) if outcome is not None] == [10]
        assert isinstance(outcomes[10], Permanent)
        assert await arrived(server) == [number for number in range(30) if number != 10]

    @pytest.mark.parametrize("setting", ["message_size_limit 10000", "max_packet_size 10000"])
    async def test_a_limit_that_ends_the_connection_spares_the_neighbours(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, setting: str
    ) -> None:
        # mosquitto does not announce the first one; of the second we pretend not to have heard.
        monkeypatch.setattr(mqtt_link.MqttLink, "most_bytes", property(lambda _: 10**9, lambda *_: None), False)
        server = start(setting)
        await subscribe(server)
        batch = [numbered(number) for number in range(41)]
        batch[10] = numbered(10, payload=b"x" * 20_000)
        async with opened(server, timeout=10) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 41)
            singly = await asyncio.gather(
                *(publisher.publish(message, sample_delivery()) for message in batch), return_exceptions=True
            )
            assert publisher._single_link is None, "the extra connection is closed"
        for results in (outcomes, singly):
            assert [place for place, outcome in enumerate(results) if outcome is not None] == [10]
            assert isinstance(results[10], Permanent)
            assert "refused for topic 'order/created': packet too large (0x95)" in str(results[10])
        assert set(await arrived(server)) == set(range(41)) - {10}


class TestRefusals:
    PASSWORD = "hunter2/secret"  # noqa: S105 - of the test
    LOGIN = "alice-user:hunter2%2Fsecret@"

    @pytest.fixture
    def guarded(self, start: Start, tmp_path: Path) -> MosquittoServer:
        passwords, rights = tmp_path / "passwords", tmp_path / "rights"
        passwords.touch(mode=0o600)
        for name in ("alice-user", "reader"):
            subprocess.run(["mosquitto_passwd", "-b", passwords, name, self.PASSWORD], check=True)
        rights.write_text("user alice-user\ntopic write order/#\nuser reader\ntopic readwrite #\n")
        return start("allow_anonymous false", f"password_file {passwords}", f"acl_file {rights}")

    async def test_a_topic_that_is_not_allowed_is_named_and_spares_its_neighbours(
        self, guarded: MosquittoServer
    ) -> None:
        await subscribe(guarded, "#", user="reader", password=self.PASSWORD)
        batch = [numbered(number) for number in range(21)]
        batch[10] = numbered(10, "secret.event")
        async with opened(guarded, login=self.LOGIN) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 21)
        assert [place for place, outcome in enumerate(outcomes) if outcome is not None] == [10]
        assert isinstance(outcomes[10], Retryable)
        assert "refused for topic 'secret/event': not authorized (0x87); allow this user to write" in str(
            outcomes[10]
        )

    async def test_refused_logins_are_unavailable_and_no_secret_is_shown(
        self, guarded: MosquittoServer, shown: Shown
    ) -> None:
        await subscribe(guarded, user="reader", password=self.PASSWORD)
        for login in (self.LOGIN, "alice-user:hunter2wrong@", ""):
            async with opened(guarded, login=login) as publisher:
                for event_type in ("order.x", "forbidden"):
                    failure = await shown.publish(publisher, event_type)
                    if failure is not None:
                        assert getattr(failure, "unavailable", None) is (login != self.LOGIN)
        guarded.stop()
        async with opened(guarded, login=self.LOGIN) as publisher:
            down = await shown.publish(publisher)
        assert isinstance(down, Retryable)
        assert down.unavailable
        assert "Connect call failed" in str(down)
        everything = shown.everything()
        assert "it refused the connection: not authorized" in everything
        assert "hunter2" not in everything
        assert "alice-user" not in everything

    async def test_a_password_from_a_file_is_read_anew_at_each_connection(
        self, guarded: MosquittoServer, tmp_path: Path
    ) -> None:
        await subscribe(guarded, user="reader", password=self.PASSWORD)
        path = tmp_path / "password"
        path.write_text("wrong-password\n")
        query = f"&password_file={quote(str(path))}"
        async with opened(guarded, query, login="alice-user@") as publisher:
            with pytest.raises(Retryable, match="not authorized"):
                await publisher.publish(sample_message(), sample_delivery())
            path.write_text(f"{self.PASSWORD}\n")
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_broker_that_takes_qos_0_only_is_unavailable(self, start: Start) -> None:
        server = start("max_qos 0")
        await server.ready()
        async with opened(server) as publisher:
            with pytest.raises(Retryable, match="it takes QoS 0 only") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """Yield the URL of something that answers the login, then a message, and says nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            for asked, answer in zip((b"MQTT", b"order/created"), answers, strict=False):
                await reader.readuntil(asked)
                writer.write(answer)
            await reader.read()

    async with Acceptor(serve) as server:
        yield f"mqtt://127.0.0.1:{server.port}?timeout={TIMEOUT}"


WELCOME = b"\x20\x03\x00\x00\x00"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak MQTT$"),
        (b"\x20\x02\x00\x01", "it does not speak MQTT 5 "),
        (b"\x20\x02\x00\x00", "it does not speak MQTT 5 "),
        (b"\x20\x03\x00\x84\x00", "it does not speak MQTT 5$"),
        (b"\x20\x06\x00\x00\x03\x21\x00\x00", "it does not speak MQTT 5 .*Receive maximum"),
        (b"\x20\x03\x00\xa5\x00", r"it refused the connection: reason \(0xA5\)$"),
        (b"\x20\x09\x00\x88\x06\x1f\x00\x03why", r"it refused the connection: server unavailable \(0x88\): why$"),
    ],
)
async def test_what_is_no_mqtt_5_broker_or_lets_nobody_in_is_told_at_once(answer: bytes, said: str) -> None:
    async with answering(answer) as url:
        publisher = MqttPublisher(url)
        started = time.monotonic()
        with pytest.raises(Retryable, match=f"cannot connect: .*: {said}") as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        assert time.monotonic() - started < TIMEOUT
        await publisher.close()


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"\x40\x03\x00\x01\x95", Permanent, r"refused .*: packet too large \(0x95\)$"),
        (b"\x40\x03\x00\x01\xa5", Retryable, r"refused .*: reason \(0xA5\)$"),
        (b"\x40\x0a\x00\x01\x97\x06\x1f\x00\x03why", Retryable, r"refused .*: quota exceeded \(0x97\): why$"),
        (b"\x40\x04\x00\x01\x87\x7f", Retryable, "connection lost before .* what came cannot be read"),
        (b"\xe0\x01\xa5", Retryable, r"connection lost before .*: reason \(0xA5\)$"),
    ],
)
async def test_what_a_broker_says_of_a_message_is_read(answer: bytes, kind: type[Exception], said: str) -> None:
    async with answering(WELCOME, answer) as url:
        publisher = MqttPublisher(url)
        with pytest.raises(kind, match=said) as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert not getattr(failure.value, "unavailable", False)
        await publisher.close()


async def test_a_frozen_broker_with_full_buffers_ends_by_the_deadline_and_the_close_too(start: Start) -> None:
    server = start()
    await subscribe(server)
    async with opened(server) as publisher:
        await publisher.publish(numbered(1), sample_delivery())
        link = await publisher._connector.get(time.monotonic() + 1)
        server.pause()
        try:
            started = time.monotonic()
            batch = [numbered(2, payload=b"x" * 1_000_000) for _ in range(30)]
            for _ in range(2):
                outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 30)
                assert all(isinstance(outcome, Retryable) for outcome in outcomes)
            assert time.monotonic() - started < 2 * TIMEOUT + SLACK
            started = time.monotonic()
            await publisher.close()
            assert time.monotonic() - started < 1
            assert link._transport is not None
            assert link._transport.get_write_buffer_size() == 0, "dropped, not kept until it can be sent"
        finally:
            server.resume()
        await publisher.open()
        await publisher.publish(numbered(3), sample_delivery())


async def test_a_connection_that_went_silent_is_replaced_and_a_late_acknowledgement_ignored(start: Start) -> None:
    server = start()
    await subscribe(server)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(server, port=proxy.port) as publisher:
            await publisher.publish(numbered(1), sample_delivery())
            proxy.mute()
            with pytest.raises(
                Retryable, match="no acknowledgement before the deadline for topic 'order/created'"
            ):
                await publisher.publish(numbered(2), sample_delivery())
            proxy.heal()
            await publisher.publish(numbered(3), sample_delivery())
            assert proxy.connections == 2


def test_on_the_dispatchers_own_loop_it_delivers_gives_up_and_recovers(start: Start) -> None:
    server = start()

    async def scenario() -> None:
        await subscribe(server)
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with opened(server, port=proxy.port) as publisher:
                for batch in ([numbered(number) for number in range(30)], [numbered(30)]):
                    outcomes = await publisher.publish_batch(batch, [sample_delivery()] * len(batch))
                    assert outcomes == [None] * len(batch)
                proxy.black_hole()
                with pytest.raises(Retryable, match="no acknowledgement before the deadline"):
                    await publisher.publish(numbered(31), sample_delivery())
                proxy.heal()
                await publisher.publish(numbered(32), sample_delivery())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
    # The black hole's own message may still arrive: what TCP has taken, it delivers.
    assert set(asyncio.run(arrived(server))) - {31} == {*range(31), 32}


async def test_one_message_with_little_time_does_not_cost_the_others_their_connection(start: Start) -> None:
    server = start()
    await subscribe(server)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(server, port=proxy.port, timeout=5) as publisher:
            await publisher.publish(numbered(1), sample_delivery())
            proxy.mute()
            with pytest.raises(Retryable, match="no acknowledgement"):
                await publisher.publish(numbered(2), sample_delivery(lease=0.4))
            proxy.heal()
            await publisher.publish(numbered(3), sample_delivery())
            assert proxy.connections == 1
    assert await arrived(server) == [1, 2, 3], "it had arrived; its repeat is for the receiver to drop"


async def test_a_broker_that_stops_in_mid_publish_is_noticed_at_once(start: Start) -> None:
    server = start()
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with server.client() as client, opened(server, port=proxy.port, timeout=60) as publisher:
            await client.subscribe("order/#", qos=1)
            arriving = aiter(client.messages)
            await publisher.publish(numbered(1), sample_delivery())
            await anext(arriving)
            proxy.mute()
            waiting = asyncio.create_task(publisher.publish(numbered(2), sample_delivery()))
            await asyncio.wait_for(anext(arriving), 5)
            proxy.refuse()
            with pytest.raises(Retryable, match="connection lost before the acknowledgement") as failure:
                await asyncio.wait_for(waiting, 5)
            assert not failure.value.unavailable, "it was sent"


async def test_an_idle_connection_whose_other_side_is_gone_is_noticed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_link, "KEEP_ALIVE", 1)
    server = start()
    await subscribe(server)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(server, port=proxy.port) as publisher:
            await publisher.publish(numbered(1), sample_delivery())
            link = await publisher._connector.get(time.monotonic() + 1)
            proxy.black_hole()
            await asyncio.wait_for(link.gone, 3)
            proxy.heal()
            await publisher.publish(numbered(2), sample_delivery())


async def test_several_brokers_are_tried_in_turn(start: Start) -> None:
    server = start()
    await subscribe(server)
    with FaultProxy("127.0.0.1", server.port) as refusing, FaultProxy("127.0.0.1", 1) as frozen:
        refusing.refuse()
        frozen.black_hole()
        hosts = f"127.0.0.1:{refusing.port},127.0.0.1:{frozen.port},127.0.0.1:{server.port}"
        publisher = MqttPublisher(f"mqtt://{hosts}?timeout=1.5")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()


async def test_tls_with_a_client_certificate(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, own, client = tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "client.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
    authority.issue_cert("client.test", common_name="certified").private_key_and_cert_chain_pem.write_to_path(
        client
    )
    port = free_port()
    server = start(
        f"listener {port} 127.0.0.1",
        *(f"cafile {ca}", f"certfile {own}", f"keyfile {own}"),
        *("require_certificate true", "use_identity_as_username true"),
    )
    await subscribe(server)
    address = f"mqtts://127.0.0.1:{port}?timeout=5"
    for query, said in ((f"&ca={ca}&cert={client}", ""), (f"&ca={ca}", "cannot connect"), ("", "VERIFY_FAILED")):
        publisher = MqttPublisher(address + query)
        (failure,) = await publisher.publish_batch([sample_message()], [sample_delivery()])
        assert (failure is None) == (not said)
        assert said in str(failure)
        await publisher.close()
