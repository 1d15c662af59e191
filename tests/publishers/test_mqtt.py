"""MQTT 5 against a real mosquitto: packets, topics, refusals, ended connections, secrets."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers import mqtt_link, mqtt_wire
from fencepost.publishers.mqtt import MAX_TOPIC_BYTES, MqttPublisher, topic_for
from fencepost.publishers.template import Template
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.fault_proxy import FaultProxy
from fencepost.testing.publisher_conformance import FREE_TEXTS
from tests.publishers.conftest import free_port
from tests.publishers.mosquitto_server import MosquittoServer, MqttProperties, read_all

TIMEOUT = 0.4
SLACK = 1.0

Start = Callable[..., MosquittoServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker with further settings."""
    servers: list[MosquittoServer] = []

    def start(*settings: str) -> MosquittoServer:
        server = MosquittoServer(tmp_path / "broker", free_port(), *settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@asynccontextmanager
async def opened(
    server: MosquittoServer, query: str = "", *, login: str = "", timeout: float = TIMEOUT, port: int = 0
) -> AsyncIterator[MqttPublisher]:
    publisher = MqttPublisher(f"mqtt://{login}127.0.0.1:{port or server.port}?timeout={timeout}{query}")
    await publisher.open()
    try:
        yield publisher
    finally:
        started = time.monotonic()
        await publisher.close()
        assert time.monotonic() - started < 1


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


class TestWire:
    """paho-mqtt reads and writes the same."""

    @given(st.text("abc é\N{ROCKET}", max_size=30), st.lists(st.tuples(st.text("ab"), st.text("xyé")), max_size=5))
    def test_properties_of_a_publish(self, content_type: str, headers: list[tuple[str, str]]) -> None:
        theirs = MqttProperties(PacketTypes.PUBLISH)
        theirs.unpack(mqtt_wire.properties(content_type, headers))
        assert theirs.ContentType == content_type
        assert list(getattr(theirs, "UserProperty", [])) == headers

    @given(st.text("abc é", max_size=30), st.integers(1, 65_535), st.integers(1, 2**28 - 1), st.booleans())
    def test_an_answer_with_everything(self, reason: str, receive: int, size: int, has_pair: bool) -> None:
        theirs = MqttProperties(PacketTypes.CONNACK)
        theirs.ReasonString = reason
        theirs.ReceiveMaximum = receive
        theirs.MaximumPacketSize = size
        theirs.MaximumQoS = 1
        theirs.AuthenticationData = b"\xff\x00"
        if has_pair:
            theirs.UserProperty = [("a", "b"), ("c", reason)]
        answer = mqtt_wire.answer(b"\x87" + theirs.pack())
        assert answer.code == 0x87
        assert answer.properties[mqtt_wire.REASON_STRING] == reason
        assert answer.properties[mqtt_wire.RECEIVE_MAXIMUM] == receive
        assert answer.properties[mqtt_wire.MAXIMUM_PACKET_SIZE] == size
        assert str(answer).startswith("not authorized (0x87)")

    @given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 7))
    def test_packets_are_found_however_they_are_cut(self, bodies: list[bytes], step: int) -> None:
        stream = b"".join(mqtt_wire._packet(0x40, body) for body in bodies)
        packets = mqtt_wire.Packets()
        found = [one for at in range(0, len(stream), step) for one in packets.feed(stream[at : at + step])]
        assert found == [(0x40, body) for body in bodies]

    @given(st.binary(max_size=40))
    def test_garbage_is_malformed_and_nothing_else(self, data: bytes) -> None:
        for read in (mqtt_wire.answer, lambda data: list(mqtt_wire.Packets().feed(data))):
            with suppress(mqtt_wire.Malformed):
                read(data)

    @given(st.text("abc/", min_size=1, max_size=255), st.binary(max_size=400))
    def test_the_size_of_a_packet_is_known(self, topic: str, payload: bytes) -> None:
        block = mqtt_wire.properties("text/plain", [("a", "b")])
        size = len(mqtt_wire.publish(topic, 7, block, payload))
        assert size <= mqtt_link.Letter(topic, payload, block).size <= size + 3


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
        assert await arrived(server) == [2]

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
        self, guarded: MosquittoServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        await subscribe(guarded, user="reader", password=self.PASSWORD)
        texts: list[str] = []
        for login in (self.LOGIN, "alice-user:hunter2wrong@", ""):
            async with opened(guarded, login=login) as publisher:
                texts.append(repr(publisher))
                for event_type in ("order.x", "forbidden"):
                    (failure,) = await publisher.publish_batch([sample_message(event_type)], [sample_delivery()])
                    if failure is not None:
                        assert getattr(failure, "unavailable", None) is (login != self.LOGIN)
                        texts += [str(failure), *traceback.format_exception(failure)]
        guarded.stop()
        async with opened(guarded, login=self.LOGIN) as publisher:
            with pytest.raises(Retryable, match="Connect call failed") as down:
                await publisher.publish(sample_message(), sample_delivery())
            assert down.value.unavailable
            texts.append(str(down.value))
        everything = "\n".join([*texts, caplog.text, *capfd.readouterr()])
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


async def test_a_server_that_does_not_speak_mqtt_is_told_at_once() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with suppress(OSError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        publisher = MqttPublisher(f"mqtt://127.0.0.1:{port}?timeout={TIMEOUT}")
        started = time.monotonic()
        with pytest.raises(Retryable, match=r"cannot connect: .*: it does not speak MQTT") as failure:
            await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        assert time.monotonic() - started < TIMEOUT
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
    await subscribe(server)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(server, port=proxy.port, timeout=60) as publisher:
            await publisher.publish(numbered(1), sample_delivery())
            proxy.mute()
            waiting = asyncio.create_task(publisher.publish(numbered(2), sample_delivery()))
            await asyncio.wait({waiting}, timeout=0.05)
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


async def test_a_lease_that_ends_stops_the_whole_batch(start: Start) -> None:
    server = start()
    async with opened(server) as publisher:
        with pytest.raises(Retryable, match="its lease is about to end"):
            await publisher.publish_batch(
                [sample_message(), sample_message()], [sample_delivery(), sample_delivery(lease=0)]
            )
