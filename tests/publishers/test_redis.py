"""Redis streams on a real server: fields, partial failures, refusals, replicas, lost connections, TLS, secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import Connection

from fencepost.embedded.ports import free_port
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.redis import stream as redis_stream
from fencepost.publishers.redis.publisher import MAX_CONNECTIONS, RedisPublisher
from fencepost.publishers.redis.stream import MAX_STREAM_BYTES, packed, stream_for
from fencepost.publishers.template import Template
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.publisher_conformance import FaultProxy
from tests.acceptor import Acceptor
from tests.publishers.in_use import Shown, in_use
from tests.publishers.redis_server import RedisServer

TIMEOUT = 0.4
SLACK = 1.0


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start a server with further command line arguments."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(RedisServer(Path(mkdtemp(dir=tmp_path)), *arguments))


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def server(shared_server: RedisServer) -> RedisServer:
    """Return a server that runs, empty, and with the settings it was started with."""
    async with shared_server.client() as client:
        await client.flushall()
    return shared_server


def opened(
    server: RedisServer | FaultProxy, query: str = "", *, userinfo: str = "", timeout: float = 5.0, path: str = ""
) -> AbstractAsyncContextManager[RedisPublisher]:
    return in_use(RedisPublisher(f"redis://{userinfo}127.0.0.1:{server.port}{path}?timeout={timeout}{query}"))


class TestStream:
    @pytest.mark.parametrize(
        ("template", "event_type", "stream"),
        [
            ("{event_type}", "order.created", "order.created"),
            ("{event_type}", "", "_"),
            ("{event_type}", "a b%c", "a%20b%25c"),
            ("{event_type}", "é\r\n", "%C3%A9%0D%0A"),
            ("events:{event_type}", "{x}:*", "events:{x}:*"),
            ("{queue}:{aggregate_type}:{aggregate_id}", "x", "a.q:order:4 2".replace(" ", "%20")),
        ],
    )
    def test_documented_rule(self, template: str, event_type: str, stream: str) -> None:
        message = sample_message(event_type, queue="a.q", aggregate_id="4 2")
        assert stream_for(Template(template, "?stream="), message) == stream

    @given(st.text(max_size=400))
    def test_any_text_gives_a_key_of_bounded_length(self, text: str) -> None:
        stream = stream_for(Template("{event_type}{key}", "?stream="), sample_message(text, aggregate_id=text))
        assert 0 < len(stream) <= MAX_STREAM_BYTES
        assert all("!" <= char <= "~" for char in stream)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://", "name one server"),
        ("redis://a,b", "neither Sentinel nor Cluster"),
        ("redis://h/events", "a database's number"),
        ("redis://h?nomkstream=yes", "nomkstream must be on or off"),
        ("redis://h?maxlen=0", "maxlen must be"),
        ("redis://h?stream={typo}", "fields are"),
        ("redis://h?ca=/x", "for rediss://"),
        ("redis://h?strem=x", "unknown option"),
        ("redis://h?dedupe=-1", "dedupe must be"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RedisPublisher(url)


async def test_fields_are_the_payload_and_the_headers(server: RedisServer) -> None:
    message = sample_message(headers={"payload": "x", "a": "é"})
    async with opened(server) as publisher:
        await publisher.publish(message, sample_delivery(token=7))
    (fields,) = await server.entries("order.created")
    assert fields[b"payload"] == message.payload
    assert fields[b"Fencepost-Message-Id"] == str(message.message_id).encode()
    assert fields[b"Fencepost-Token"] == b"7"
    assert fields[b"Fencepost-Header-payload"] == b"x", "it would have taken the payload's place"
    assert fields[b"a"] == b"%C3%A9"


async def test_the_path_chooses_the_database(server: RedisServer) -> None:
    async with opened(server, path="/3") as publisher:
        await publisher.publish(sample_message(), sample_delivery())
    assert len(await server.entries("order.created", db=3)) == 1
    assert not await server.entries("order.created")


async def test_maxlen_trims_about(server: RedisServer) -> None:
    async with opened(server, "&maxlen=100") as publisher:
        for _ in range(5):
            outcomes = await publisher.publish_batch(
                [sample_message() for _ in range(100)], [sample_delivery()] * 100
            )
            assert outcomes == [None] * 100
    assert 100 <= len(await server.entries("order.created")) <= 200


async def test_an_error_of_one_entry_is_its_own(server: RedisServer) -> None:
    async with server.client() as client:
        await client.set("bad", "a string")
    batch = [sample_message(event, id=n) for n, event in enumerate(["a", "bad", "a", "b"])]
    async with opened(server) as publisher:
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 4)
    assert [outcome is None for outcome in outcomes] == [True, False, True, True]
    assert isinstance(outcomes[1], Retryable)
    assert not outcomes[1].unavailable
    assert "'bad': WRONGTYPE" in str(outcomes[1])
    assert "correct ?stream=" in str(outcomes[1])
    assert (len(await server.entries("a")), len(await server.entries("b"))) == (2, 1)


@pytest.mark.parametrize("query", ["", "&dedupe=60"])
async def test_a_key_stops_at_its_first_error(server: RedisServer, query: str) -> None:
    async with server.client() as client:
        await client.set("bad", "a string")
    events = ["good", "bad", "good", "other"]
    batch = [sample_message(event, id=n, ordering_key="k") for n, event in enumerate(events)]
    batch.insert(2, sample_message("other", id=9, ordering_key="another"))
    async with opened(server, query) as publisher:
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 5)
        assert [outcome is None for outcome in outcomes] == [True, False, True, False, False]
        assert "WRONGTYPE" in str(outcomes[1])
        assert "earlier message of its key" in str(outcomes[3])
        assert (len(await server.entries("good")), len(await server.entries("other"))) == (1, 1)
        async with server.client() as client:
            await client.delete("bad")
        outcomes = await publisher.publish_batch([batch[1], *batch[3:]], [sample_delivery()] * 3)
        assert outcomes == [None] * 3


async def test_more_than_the_server_reads_is_permanent_and_the_others_come_again(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis("--proto-max-bulk-len", "1mb")
    batch = [sample_message("e", b"x" * size, id=n) for n, size in enumerate([10, 3_000_000, 10])]
    async with server.client(), opened(server) as publisher:
        for _ in range(5):  # the server hangs up while we write, and its reset may overtake its answers
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 3)
            if isinstance(outcomes[1], Permanent):
                break
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Permanent)
        assert "proto-max-bulk-len" in str(outcomes[1])
        assert isinstance(outcomes[2], Retryable)
        await publisher.publish(batch[2], sample_delivery())
    assert len(await server.entries("e")) == 2


async def test_what_is_too_long_for_one_script_comes_after_the_answers(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_stream, "MAX_SCRIPT_BYTES", 2_000)
    batch = [sample_message("e", id=n, ordering_key="ab"[n % 2], payload=b"x" * 500) for n in range(20)]
    async with opened(server) as publisher:
        assert await publisher.publish_batch(batch, [sample_delivery()] * 20) == [None] * 20
    received = [one.message_id for one in await server.received("e")]
    for key in "ab":
        sent = [one.message_id for one in batch if one.ordering_key == key]
        assert [one for one in received if one in sent] == sent


async def test_thousands_of_headers_go_through_the_script_and_more_are_refused(server: RedisServer) -> None:
    many = {f"h{n}": "x" for n in range(redis_stream.MAX_FIELDS - 9)}
    batch = [sample_message("e", id=n, ordering_key="k", headers=many) for n in range(2)]
    batch.append(sample_message("e", ordering_key="k", headers=many | {f"i{n}": "x" for n in range(9)}))
    async with opened(server, "&maxlen=1000&nomkstream=off") as publisher:
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 3)
    assert outcomes[:2] == [None, None]
    assert isinstance(outcomes[2], Permanent)
    assert "the limit is 2999" in str(outcomes[2])


class TestDedupe:
    async def test_a_repeat_inside_the_window_is_delivered_and_not_appended(self, server: RedisServer) -> None:
        messages = [sample_message("e", id=n, ordering_key=key) for n, key in enumerate(["k", "k", None])]
        async with opened(server, "&dedupe=60") as publisher:
            for attempt in (1, 2):
                deliveries = [sample_delivery(attempt=attempt)] * 3
                assert await publisher.publish_batch(messages, deliveries) == [None] * 3
        assert {one.message_id for one in await server.received("e")} == {one.message_id for one in messages}
        assert len(await server.entries("e")) == 3
        async with server.client() as client:
            assert 0 < await client.ttl(f"fencepost:e:{messages[0].message_id}") <= 60

    async def test_a_repeat_after_a_lost_answer_is_not_appended(self, server: RedisServer) -> None:
        message = sample_message("e")
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with opened(proxy, "&dedupe=60") as publisher:
                await publisher.publish(sample_message("e"), sample_delivery())
                proxy.cut_answer()
                with pytest.raises(Retryable, match="connection lost before the answer"):
                    await publisher.publish(message, sample_delivery())
                await publisher.publish(message, sample_delivery(attempt=2))
        assert len(await server.entries("e")) == 2


async def test_a_lost_answer_is_never_repeated_behind_our_back(server: RedisServer) -> None:
    message = sample_message("e")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(proxy) as publisher:
            await publisher.publish(sample_message("e"), sample_delivery())
            proxy.cut_answer()
            with pytest.raises(Retryable, match="connection lost") as failure:
                await publisher.publish(message, sample_delivery())
            assert not failure.value.unavailable, "it was sent"
    assert len(await server.entries("e")) == 2


class TestUnavailable:
    async def _refused(self, publisher: RedisPublisher, text: str) -> None:
        batch = [sample_message("e", id=n, ordering_key=key) for n, key in enumerate(["k", "k", None])]
        outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 3)
        for outcome in (outcomes[0], outcomes[2]):
            assert isinstance(outcome, Retryable)
            assert text in str(outcome)
            assert outcome.unavailable
        assert outcomes[1] is not None

    async def test_out_of_memory(self, server: RedisServer) -> None:
        async with opened(server) as publisher, server.client() as client:
            await publisher.publish(sample_message("e"), sample_delivery())
            await client.config_set("maxmemory", "1")
            try:
                await self._refused(publisher, "OOM command not allowed")
            finally:
                await client.config_set("maxmemory", "0")
            await publisher.publish(sample_message("e"), sample_delivery())
        assert len(await server.entries("e")) == 2

    async def test_a_primary_that_became_a_replica(self, start_redis: Callable[..., RedisServer]) -> None:
        server = start_redis()
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with server.client() as client, opened(proxy) as publisher:
                await publisher.publish(sample_message("e"), sample_delivery())
                await client.replicaof("127.0.0.1", 1)
                await self._refused(publisher, "READONLY")
                await client.replicaof("NO", "ONE")
                await publisher.publish(sample_message("e"), sample_delivery())
                assert proxy.connections == 2, "another connection may lead to the new primary"

    async def test_a_server_that_wants_replicas(self, server: RedisServer) -> None:
        async with opened(server) as publisher, server.client() as client:
            await client.config_set("min-replicas-to-write", 1)
            try:
                await self._refused(publisher, "NOREPLICAS")
            finally:
                await client.config_set("min-replicas-to-write", 0)

    async def test_a_server_that_still_loads(self, start_redis: Callable[..., RedisServer]) -> None:
        server = start_redis("--key-load-delay", "300", "--appendfsync", "no")
        async with server.client() as client, client.pipeline(transaction=False) as pipeline:
            for number in range(6_000):  # it looks at its connections once in 1,000 of them
                pipeline.set(f"key{number}", "x")
            await pipeline.execute()
        server.stop()
        server.start()
        async with opened(server) as publisher:
            while True:
                with pytest.raises(Retryable) as failure:
                    await publisher.publish(sample_message("e"), sample_delivery())
                assert failure.value.unavailable
                if "LOADING" in str(failure.value):
                    break
                assert "cannot connect" in str(failure.value), "only until it listens"
                await asyncio.sleep(0.01)  # between two looks at the condition, which is "it listens"

    async def test_nobody_listens(self) -> None:
        publisher = RedisPublisher(f"redis://127.0.0.1:{free_port()}?timeout=2")
        await self._refused(publisher, "cannot connect")
        await publisher.close()

    async def test_something_that_is_not_redis(self) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            await reader.read()

        async with Acceptor(greet) as other:
            publisher = RedisPublisher(f"redis://127.0.0.1:{other.port}?timeout={TIMEOUT}")
            await self._refused(publisher, "cannot connect")
            await publisher.close()


class TestReplicas:
    async def test_delivered_means_that_the_replica_has_it(self, start_redis: Callable[..., RedisServer]) -> None:
        server = start_redis("--repl-diskless-sync-delay", "0")
        # With a log of its own it would refuse to stop while it writes the first one.
        replica = start_redis("--replicaof", "127.0.0.1", str(server.port), "--appendonly", "no")
        async with opened(server, "&wait_replicas=1") as publisher:
            async with replica.client() as client, asyncio.timeout(20):
                while (await client.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - a server's
                    await asyncio.sleep(0.05)  # between two looks at the condition
            batch = [sample_message("e", id=n, ordering_key=key) for n, key in enumerate(["k", "k", None])]
            assert await publisher.publish_batch(batch, [sample_delivery()] * 3) == [None] * 3
            assert len(await replica.entries("e")) == 3

    async def test_without_it_the_message_is_not_delivered(self, server: RedisServer) -> None:
        async with opened(server, "&wait_replicas=1", timeout=TIMEOUT) as publisher:
            started = time.monotonic()
            with pytest.raises(Retryable, match="stored, but only 0 of 1 replicas"):
                await publisher.publish(sample_message("e"), sample_delivery())
            assert time.monotonic() - started < TIMEOUT + SLACK


class TestConnections:
    async def test_client_pause_ends_by_the_deadline_and_later_it_delivers(self, server: RedisServer) -> None:
        async with opened(server, timeout=TIMEOUT) as publisher, server.client() as client:
            await publisher.publish(sample_message("e"), sample_delivery())
            await client.client_pause(60_000, all=False)
            started = time.monotonic()
            with pytest.raises(Retryable, match="no answer before the deadline") as failure:
                await publisher.publish(sample_message("e"), sample_delivery())
            assert TIMEOUT <= time.monotonic() - started < TIMEOUT + SLACK
            assert not failure.value.unavailable, "it was sent"
            await client.client_unpause()
            await publisher.publish(sample_message("e"), sample_delivery())

    async def test_a_frozen_server_with_full_buffers_gets_nothing_later(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis()
        await server.ready()
        async with opened(server, timeout=TIMEOUT) as publisher:
            await publisher.publish(sample_message("e"), sample_delivery())
            transport = publisher._idle[0].transport
            assert transport is not None
            server.pause()
            big = [sample_message("e", b"x" * 1_000_000, id=n) for n in range(12)]
            started = time.monotonic()
            outcomes = await publisher.publish_batch(big, [sample_delivery()] * 12)
            assert all(isinstance(outcome, Retryable) for outcome in outcomes)
            assert time.monotonic() - started < TIMEOUT + SLACK
            await asyncio.sleep(0)  # lets the task see that it was cancelled
            assert transport.get_write_buffer_size() == 0, "dropped, not kept until it can be sent"
            server.resume()
            await publisher.publish(sample_message("e"), sample_delivery())

    async def test_a_connection_that_the_server_closed_meanwhile_costs_no_attempt(
        self, server: RedisServer
    ) -> None:
        async with opened(server) as publisher, server.client() as client:
            await publisher.publish(sample_message("e"), sample_delivery())
            await client.client_kill_filter(_type="normal", skipme=True)
            await client.ping()  # a round trip: the closing has arrived here as well
            await publisher.publish(sample_message("e"), sample_delivery())

    async def test_many_publishes_at_once_share_a_few_connections(self, server: RedisServer) -> None:
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with opened(proxy) as publisher:
                await asyncio.gather(
                    *(publisher.publish(sample_message("e"), sample_delivery()) for _ in range(100))
                )
                assert proxy.connections <= MAX_CONNECTIONS
        assert len(await server.entries("e")) == 100

    async def test_after_a_black_hole_all_connections_are_made_anew(self, server: RedisServer) -> None:
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with opened(proxy, timeout=TIMEOUT) as publisher:
                publishes = [publisher.publish(sample_message("e"), sample_delivery()) for _ in range(20)]
                await asyncio.gather(*publishes)
                assert len(publisher._idle) > 1
                proxy.black_hole()
                with pytest.raises(Retryable, match="before the deadline"):
                    await publisher.publish(sample_message("e"), sample_delivery())
                assert not publisher._idle
                proxy.heal()
                await publisher.publish(sample_message("e"), sample_delivery())

    async def test_a_batch_is_one_pipeline(self, server: RedisServer) -> None:
        async with opened(server) as publisher, server.client() as client:
            await publisher.publish(sample_message("e"), sample_delivery())
            await client.config_resetstat()
            keys = [None, "a", "b", None]
            batch = [sample_message("e", id=n, ordering_key=keys[n % 4]) for n in range(100)]
            assert await publisher.publish_batch(batch, [sample_delivery()] * 100) == [None] * 100
            stats = await client.info("commandstats")
            assert stats["cmdstat_xadd"]["calls"] == 100
            assert stats["cmdstat_eval"]["calls"] == 2, "one for each key"


def test_on_the_dispatchers_own_loop_it_delivers_gives_up_and_recovers(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()

    async def scenario() -> int:
        with FaultProxy("127.0.0.1", server.port) as proxy:
            async with server.client() as client, opened(proxy, timeout=TIMEOUT) as publisher:
                batch = [sample_message("e", id=n, ordering_key=("a", None)[n % 2]) for n in range(30)]
                assert await publisher.publish_batch(batch, [sample_delivery()] * 30) == [None] * 30
                await client.client_kill_filter(_type="normal", skipme=True)
                while await _is_open(publisher):  # noqa: ASYNC110 - a server's doing
                    await asyncio.sleep(0.01)  # between two looks at the condition
                await publisher.publish(sample_message("e"), sample_delivery())
                proxy.black_hole()
                with pytest.raises(Retryable, match="no answer before the deadline"):
                    await publisher.publish(sample_message("e"), sample_delivery())
                proxy.heal()
                await publisher.publish(sample_message("e"), sample_delivery())
                await _cut_right_before_the_send(publisher)
            return len(await server.entries("e"))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # The black hole's own message may still arrive: what TCP has taken, it delivers.
        assert runner.run(scenario()) in (32, 33)


async def _cut_right_before_the_send(publisher: RedisPublisher) -> None:
    """Where asyncio's own loop would take what is written to a closed transport, uvloop raises RuntimeError."""
    link = publisher._idle[0]
    assert link.transport is not None
    link.transport.abort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher, "_is_fresh", lambda _: asyncio.sleep(0, result=True))
        with pytest.raises(Retryable, match="connection lost before the answer"):
            await publisher.publish(sample_message("e"), sample_delivery())


async def _is_open(publisher: RedisPublisher) -> bool:
    return await publisher._is_fresh(publisher._idle[0].connection)


class TestTls:
    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def secured(
        self, authority: trustme.CA, start_redis: Callable[..., RedisServer], tmp_path: Path
    ) -> tuple[RedisServer, int]:
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        certificate.private_key_pem.write_to_path(tmp_path / "server.key")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
        mine = authority.issue_cert("client@example.com")
        mine.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
        port = free_port()
        server = start_redis(
            *(
                "--tls-port",
                str(port),
                "--tls-auth-clients",
                "yes",
                "--tls-ca-cert-file",
                str(tmp_path / "ca.pem"),
            ),
            *("--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file", str(tmp_path / "server.key")),
        )
        return server, port

    async def test_with_the_right_authority_and_certificate_it_delivers(
        self, secured: tuple[RedisServer, int], tmp_path: Path
    ) -> None:
        server, port = secured
        await server.ready()
        publisher = RedisPublisher(
            f"rediss://127.0.0.1:{port}?timeout=5&ca={tmp_path}/ca.pem&cert={tmp_path}/client.pem"
        )
        await publisher.publish(sample_message("e"), sample_delivery())
        await publisher.close()
        assert len(await server.entries("e")) == 1

    async def test_without_them_it_sends_nothing(self, secured: tuple[RedisServer, int], tmp_path: Path) -> None:
        server, port = secured
        await server.ready()
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        for query in ("", f"&ca={tmp_path}/other.pem", f"&ca={tmp_path}/ca.pem"):
            publisher = RedisPublisher(f"rediss://127.0.0.1:{port}?timeout=5{query}")
            with pytest.raises(Retryable) as failure:
                await publisher.publish(sample_message("e"), sample_delivery())
            assert failure.value.unavailable
            await publisher.close()
        assert not await server.entries("e")


class TestCredentials:
    PASSWORD = "hunter2/secret"  # noqa: S105 - made up for this test
    USERINFO = "alice-user:hunter2%2Fsecret@"

    @pytest.fixture
    async def guarded(self, server: RedisServer) -> AsyncIterator[RedisServer]:
        async with server.client() as client:
            await client.acl_setuser(
                "alice-user",
                enabled=True,
                passwords=[f"+{self.PASSWORD}"],
                commands=["+@connection", "+xadd"],
                keys=["order.*"],
            )
            yield server
            await client.acl_deluser("alice-user")

    async def test_the_right_ones_deliver(self, guarded: RedisServer) -> None:
        async with opened(guarded, userinfo=self.USERINFO) as publisher:
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_password_alone_is_the_default_users(self, start_redis: Callable[..., RedisServer]) -> None:
        server = start_redis("--requirepass", self.PASSWORD)
        async with (
            server.client(password=self.PASSWORD),
            opened(server, userinfo=":hunter2%2Fsecret@") as publisher,
        ):
            await publisher.publish(sample_message(), sample_delivery())
        async with opened(server) as publisher:
            with pytest.raises(Retryable, match="NOAUTH") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable

    async def test_a_secret_that_is_rotated_is_read_again(self, guarded: RedisServer, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text("wrong\n")
        (tmp_path / "user").write_text("alice-user")
        async with opened(guarded, f"&user_file={tmp_path}/user&password_file={file}") as publisher:
            with pytest.raises(Retryable, match="cannot connect: NOAUTH") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable
            file.write_text(self.PASSWORD + "\n")
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_missing_permission_is_named(self, guarded: RedisServer) -> None:
        async with opened(guarded, userinfo=self.USERINFO) as publisher:
            with pytest.raises(Retryable, match=r"'forbidden': NOPERM .*allow this user \+xadd") as failure:
                await publisher.publish(sample_message("forbidden"), sample_delivery())
            assert not failure.value.unavailable
            batch = [sample_message(id=n, ordering_key="k") for n in range(2)]
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 2)
            assert all("NOPERM" in str(outcome) for outcome in outcomes), "no +eval"

    async def test_never_in_repr_errors_or_logs(self, guarded: RedisServer, shown: Shown) -> None:
        for userinfo in (self.USERINFO, "alice-user:hunter2wrong@", ":hunter2token@"):
            async with opened(guarded, userinfo=userinfo) as publisher:
                for event_type in ("order.x", "forbidden"):
                    await shown.publish(publisher, event_type)
        everything = shown.everything()
        assert "NOPERM" in everything
        assert "hunter2" not in everything
        assert "alice-user" not in everything


def test_commands_are_packed_as_the_client_packs_them() -> None:
    long = "v" * 1_000
    commands: list[list[str | bytes | int]] = [
        ["XADD", "événement", "MAXLEN", "~", 1_000, "*", "payload", b"\r\n\x00", "name", long],
        ["EVAL", "return 1", 0, "", b""],
        ["WAIT", 1, 250],
    ]
    theirs = Connection().pack_commands(commands)
    assert b"".join(packed(commands)) == b"".join(theirs)
    assert b"".join(packed(commands)) == b"".join(theirs)  # and so they are when they are remembered
