"""NATS JetStream against a real server: subjects, streams, sizes, refusals, lost connections, secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats.aio.client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

from fencepost.errors import Permanent, Retryable
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.nats.subject import MAX_SUBJECT_CHARS, Subject
from fencepost.testing import sample_delivery, sample_message
from tests.acceptor import Acceptor
from tests.publishers.in_use import Shown, in_use
from tests.publishers.nats_server import NatsServer
from tests.runtime.proxy import Proxy

TIMEOUT = 0.4
SLACK = 1.0


def opened(
    server: NatsServer, query: str = "", *, userinfo: str = "", timeout: float = TIMEOUT
) -> AbstractAsyncContextManager[NatsPublisher]:
    return in_use(NatsPublisher(f"nats://{userinfo}127.0.0.1:{server.port}?timeout={timeout}{query}"))


@asynccontextmanager
async def client_of(server: NatsServer, **options: str) -> AsyncIterator[nats.aio.client.Client]:
    client = await server.connect(**options)
    try:
        yield client
    finally:
        await client.close()


async def add_stream(server: NatsServer, name: str = "EVENTS", subject: str = "order.>", **options: Any) -> None:
    async with client_of(server) as client:
        await client.jetstream().add_stream(name=name, subjects=[subject], **options)


async def stored(server: NatsServer, name: str = "EVENTS") -> int:
    async with client_of(server) as client:
        return (await client.jetstream().stream_info(name)).state.messages


class TestSubject:
    @pytest.mark.parametrize(
        ("template", "event_type", "subject"),
        [
            ("{event_type}", "order.created", "order.created"),
            ("{event_type}", "", "_"),
            ("{event_type}", ".", "_._"),
            ("{event_type}", "a..b.", "a._.b._"),
            ("{event_type}", "a b*c>d%e$f", "a%20b%2Ac%3Ed%25e%24f"),
            ("{event_type}", "é\r\n\x00\t", "%C3%A9%0D%0A%00%09"),
            ("{event_type}", "$JS.API.STREAM.DELETE.EVENTS", "%24JS.API.STREAM.DELETE.EVENTS"),
            ("{event_type}", "_INBOX.x.y", "%5FINBOX.x.y"),
            ("events.{event_type}.v1", "order.paid", "events.order.paid.v1"),
            ("{queue}.{aggregate_type}.{aggregate_id}.{key}", "x", "a%2Eq.order.4%2E2.4%2E2"),
        ],
    )
    def test_documented_rule(self, template: str, event_type: str, subject: str) -> None:
        assert Subject(template).of(sample_message(event_type, queue="a.q", aggregate_id="4.2")) == subject

    def test_a_missing_field_is_an_underscore(self) -> None:
        assert (
            Subject("{aggregate_type}.{key}").of(sample_message(aggregate_type=None, aggregate_id=None)) == "_._"
        )

    @given(st.text(max_size=400))
    def test_any_text_gives_a_subject_that_the_server_accepts(self, text: str) -> None:
        message = sample_message(text, queue=text, aggregate_id=text)
        for template in ("{event_type}", "e.{event_type}.{queue}.{key}"):
            subject = Subject(template).of(message)
            assert len(subject) <= MAX_SUBJECT_CHARS
            assert all("!" <= char <= "~" and char not in "*>" for char in subject)
            assert all(subject.split("."))

    def test_long_subjects_are_cut_and_stay_distinct(self) -> None:
        one, two = (Subject("{event_type}").of(sample_message("x" * 800 + end)) for end in "ab")
        assert len(one) == len(two) == MAX_SUBJECT_CHARS
        assert one != two
        assert one[:238] == two[:238]


async def test_headers_and_message_id_are_stored(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    message = sample_message(headers={"Status": "503", "Nats-Rollup": "all", "x": "a\r\nb"})
    async with opened(nats_server, "&stream=EVENTS") as publisher:
        await publisher.publish(message, sample_delivery(token=7))
    async with client_of(nats_server) as client:
        received = await client.jetstream().get_msg("EVENTS", 1)
    assert received.subject == "order.created"
    headers = received.headers or {}
    assert headers["Fencepost-Message-Id"] == str(message.message_id)
    assert headers["Nats-Msg-Id"] == f"{message.message_id}:order.created"
    assert headers["Nats-Expected-Stream"] == "EVENTS"
    assert headers["Fencepost-Token"] == "7"
    assert headers["x"] == "a%0D%0Ab"
    assert headers["Fencepost-Header-Status"] == "503", "a consumer would take Status for the server's own"
    assert headers["Fencepost-Header-Nats-Rollup"] == "all"


async def test_two_destinations_in_one_stream_both_get_an_event(nats_server: NatsServer) -> None:
    await add_stream(nats_server, subject="e.>")
    message = sample_message()
    for place in ("shop", "audit"):
        async with opened(nats_server, f"&stream=EVENTS&subject=e.{place}.{{event_type}}") as publisher:
            await publisher.publish(message, sample_delivery())
            await publisher.publish(message, sample_delivery(attempt=2))
    async with client_of(nats_server) as client:
        subjects = [(await client.jetstream().get_msg("EVENTS", number)).subject for number in (1, 2)]
    assert subjects == ["e.shop.order.created", "e.audit.order.created"]
    assert await stored(nats_server) == 2, "each repeat on its subject is dropped all the same"


async def test_a_duplicate_acknowledgement_is_success(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    message = sample_message()
    async with opened(nats_server) as publisher:
        for attempt in (1, 2, 3):
            await publisher.publish(message, sample_delivery(attempt=attempt, token=attempt))
    assert await stored(nats_server) == 1


async def test_an_event_type_cannot_call_the_servers_api(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        with pytest.raises(Retryable, match="no JetStream stream listens"):
            await publisher.publish(sample_message("$JS.API.STREAM.DELETE.EVENTS"), sample_delivery())
    assert await stored(nats_server) == 0


async def test_no_stream_on_the_subject_is_retryable_and_says_so_at_once(nats_server: NatsServer) -> None:
    async with client_of(nats_server), opened(nats_server) as publisher:
        with pytest.raises(Retryable, match=r"no JetStream stream listens on subject 'order.created': create"):
            await publisher.publish(sample_message(), sample_delivery())
        await add_stream(nats_server)
        await publisher.publish(sample_message(), sample_delivery())


async def test_another_stream_than_the_configured_one_is_retryable(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with opened(nats_server, "&stream=OTHER") as publisher:
        with pytest.raises(Retryable, match=r"expected stream does not match.*\?stream=OTHER"):
            await publisher.publish(sample_message(), sample_delivery())
    assert await stored(nats_server) == 0


async def test_a_subscriber_that_is_no_stream_does_not_count_and_disturbs_no_other(
    nats_server: NatsServer,
) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server) as client, opened(nats_server) as publisher:
        await client.subscribe("mute")
        await client.flush()
        mute = asyncio.create_task(publisher.publish(sample_message("mute"), sample_delivery()))
        good = 0
        while not mute.done():
            await publisher.publish(sample_message(), sample_delivery())
            good += 1
        with pytest.raises(Retryable, match="no acknowledgement for subject 'mute' before the deadline"):
            await mute
    assert good > 1
    assert await stored(nats_server) == good


@pytest.mark.parametrize(
    "reply", [b"", b"+OK", b"[]", b"{}", b'{"stream": "", "seq": 1}', b'{"error": 1}', b"null"]
)
async def test_an_answer_that_is_no_acknowledgement_is_retryable(nats_server: NatsServer, reply: bytes) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(reply)

    async with client_of(nats_server) as client, opened(nats_server) as publisher:
        await client.subscribe("service", cb=answer)
        await client.flush()
        with pytest.raises(Retryable, match="not an acknowledgement of a stream"):
            await publisher.publish(sample_message("service"), sample_delivery())


async def test_an_acknowledgement_of_another_stream_is_retryable(nats_server: NatsServer) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b'{"stream": "FAKE", "seq": 1}')

    async with client_of(nats_server) as client, opened(nats_server, "&stream=EVENTS") as publisher:
        await client.subscribe("service", cb=answer)
        await client.flush()
        with pytest.raises(Retryable, match="not an acknowledgement of the stream 'EVENTS'"):
            await publisher.publish(sample_message("service"), sample_delivery())


@pytest.mark.parametrize("below", [0, 1, 200, 400])
async def test_a_payload_that_only_its_headers_push_over_the_limit_is_permanent_and_keeps_the_connection(
    nats_server: NatsServer, below: int
) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        link = publisher._connecting
        big = sample_message(payload=b"x" * (1_048_576 - below), headers={"x": "y" * 500})
        with pytest.raises(Permanent, match="max_payload"):
            await publisher.publish(big, sample_delivery())
        await publisher.publish(sample_message(), sample_delivery())
        assert publisher._connecting is link, "the server did not cut the connection"


async def test_the_size_check_is_exact(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        size = 1_048_576
        with pytest.raises(Permanent) as refused:
            await publisher.publish(sample_message(payload=b"x" * size), sample_delivery())
        sent = int(str(refused.value).split(" are ")[1].split(" bytes")[0])
        await publisher.publish(sample_message(payload=b"x" * (2 * size - sent)), sample_delivery())
        with pytest.raises(Permanent):
            await publisher.publish(sample_message(payload=b"x" * (2 * size - sent + 1)), sample_delivery())


async def test_larger_than_the_stream_accepts_is_permanent(nats_server: NatsServer) -> None:
    await add_stream(nats_server, max_msg_size=1_000)
    async with opened(nats_server) as publisher:
        with pytest.raises(Permanent, match="message size exceeds maximum"):
            await publisher.publish(sample_message(payload=b"x" * 1_001), sample_delivery())
        await publisher.publish(sample_message(), sample_delivery())


async def test_a_full_stream_is_retryable(nats_server: NatsServer) -> None:
    async with client_of(nats_server) as client:
        await client.jetstream().add_stream(name="EVENTS", subjects=["order.>"], max_msgs=1, discard="new")
    async with opened(nats_server) as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        with pytest.raises(Retryable, match="maximum messages exceeded"):
            await publisher.publish(sample_message(), sample_delivery())


async def test_a_server_stopped_in_mid_publish_is_noticed_at_once(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server) as client, opened(nats_server, timeout=60) as publisher:
        mute = await client.subscribe("mute")
        await client.flush()
        await publisher.publish(sample_message(), sample_delivery())
        waiting = asyncio.create_task(publisher.publish(sample_message("mute"), sample_delivery()))
        await mute.next_msg(timeout=5)
        await asyncio.to_thread(nats_server.stop)
        with pytest.raises(Retryable, match="connection lost before the acknowledgement"):
            await asyncio.wait_for(waiting, 5)


async def test_a_frozen_server_with_full_buffers_ends_by_the_deadline_and_the_close_too(
    nats_server: NatsServer,
) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        assert publisher._connecting is not None
        client = publisher._connecting.result().client
        nats_server.pause()
        big = b"x" * 1_000_000
        started = time.monotonic()
        for _ in range(2):
            publishes = [publisher.publish(sample_message(payload=big), sample_delivery()) for _ in range(12)]
            results = await asyncio.gather(*publishes, return_exceptions=True)
            assert all(isinstance(result, Retryable) for result in results)
        assert time.monotonic() - started < 2 * TIMEOUT + SLACK
        await publisher.close()
        assert time.monotonic() - started < 2 * TIMEOUT + 1 + SLACK
        transport: Any = client._transport
        assert transport._io_writer.transport.get_write_buffer_size() == 0, (
            "dropped, not kept until it can be sent"
        )
        nats_server.resume()
        await publisher.publish(sample_message(), sample_delivery())


class SilentPath:
    """A way to the server on which the first connection stops carrying anything, without being closed."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._acceptor = Acceptor(self._serve)
        self.connections = 0
        self.silent = asyncio.Event()

    @property
    def port(self) -> int:
        return self._acceptor.port

    async def __aenter__(self) -> SilentPath:
        await self._acceptor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._acceptor.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        cut = self.silent if self.connections == 1 else asyncio.Event()
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            async with asyncio.TaskGroup() as copying:
                copying.create_task(self._copy(reader, back, cut))
                copying.create_task(self._copy(there, writer, cut))
        finally:
            back.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        try:
            with suppress(OSError):
                while chunk := await source.read(65_536):
                    if not cut.is_set():
                        target.write(chunk)
                        await target.drain()
        finally:
            target.transport.abort()


async def test_a_connection_that_went_silent_is_replaced(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server), SilentPath(nats_server.port) as path:
        publisher = NatsPublisher(f"nats://127.0.0.1:{path.port}?timeout={TIMEOUT}")
        await publisher.publish(sample_message(), sample_delivery())
        path.silent.set()
        with pytest.raises(Retryable, match="before the deadline"):
            await publisher.publish(sample_message(), sample_delivery())
        await publisher.publish(sample_message(), sample_delivery())
        assert path.connections == 2
        await publisher.close()


async def test_no_message_is_sent_after_its_publish_failed_for_want_of_a_connection(
    nats_server: NatsServer,
) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        nats_server.stop()
        for _ in range(3):
            with pytest.raises(Retryable, match=r"cannot connect|connection closed|connection lost"):
                await publisher.publish(sample_message(), sample_delivery())
        nats_server.start()
        async with client_of(nats_server):
            await publisher.publish(sample_message(), sample_delivery())
    assert await stored(nats_server) == 2, "nothing was kept in a buffer and sent late"


async def test_a_second_server_in_the_url_takes_over(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    publisher = NatsPublisher(f"nats://127.0.0.1:1,127.0.0.1:{nats_server.port}?timeout=2")
    for _ in range(3):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()


async def test_something_that_is_not_nats_is_retryable() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read()

    async with Acceptor(greet) as server:
        publisher = NatsPublisher(f"nats://127.0.0.1:{server.port}?timeout={TIMEOUT}")
        with pytest.raises(Retryable, match="cannot connect"):
            await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()


async def test_one_connection_serves_all_publishes_at_once(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with Proxy("127.0.0.1", nats_server.port) as proxy:
        publisher = NatsPublisher(f"nats://127.0.0.1:{proxy.port}?timeout=10")
        await asyncio.gather(*(publisher.publish(sample_message(), sample_delivery()) for _ in range(50)))
        await publisher.close()
    assert proxy.accepted == 1
    assert await stored(nats_server) == 50


async def test_the_connect_attempt_of_a_cancelled_publish_serves_the_others(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        first = asyncio.create_task(publisher.publish(sample_message(), sample_delivery()))
        second = asyncio.create_task(publisher.publish(sample_message(), sample_delivery()))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()


class TestCredentials:
    PASSWORD = "hunter2/secret"  # noqa: S105 - made up for this test
    USERINFO = "alice-user:hunter2%2Fsecret@"

    @pytest.fixture
    def guarded(self, start_nats: Callable[..., NatsServer], tmp_path: Path) -> NatsServer:
        config = tmp_path / "server.conf"
        config.write_text(
            "authorization { users = ["
            f'{{ user: "alice-user", password: "{self.PASSWORD}", '
            'permissions: { publish: ["order.>", "$JS.API.>"] } } ] }'
        )
        return start_nats("-c", str(config))

    async def test_the_right_ones_deliver(self, guarded: NatsServer) -> None:
        async with client_of(guarded, user="alice-user", password=self.PASSWORD) as client:
            await client.jetstream().add_stream(name="EVENTS", subjects=["order.>"])
        async with opened(guarded, userinfo=self.USERINFO) as publisher:
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_missing_permission_is_named(self, guarded: NatsServer) -> None:
        async with client_of(guarded, user="alice-user", password=self.PASSWORD):
            pass
        async with opened(guarded, userinfo=self.USERINFO) as publisher:
            with pytest.raises(Retryable, match=r"\(the server said: nats: permissions violation for publish"):
                await publisher.publish(sample_message("forbidden"), sample_delivery())

    async def test_a_token_is_sent_as_one(self, start_nats: Callable[..., NatsServer]) -> None:
        server = start_nats("--auth", "s3cret-token")
        await asyncio.to_thread(server.wait_until_it_listens)
        async with opened(server, userinfo="s3cret-token@", timeout=5) as publisher:
            with pytest.raises(Retryable, match="no JetStream stream"):  # it came past the authentication
                await publisher.publish(sample_message(), sample_delivery())

    async def test_never_in_repr_errors_or_logs(self, guarded: NatsServer, shown: Shown) -> None:
        async with client_of(guarded, user="alice-user", password=self.PASSWORD):
            pass
        for userinfo in (self.USERINFO, "alice-user:hunter2wrong@", "hunter2token@"):
            async with opened(guarded, userinfo=userinfo) as publisher:
                for event_type in ("order.x", "forbidden"):
                    await shown.publish(publisher, event_type)
        guarded.stop()
        async with opened(guarded, userinfo=self.USERINFO) as publisher:
            assert isinstance(await shown.publish(publisher), Retryable)
        everything = shown.everything()
        assert "uthorization" in everything
        assert "hunter2" not in everything
        assert "alice-user" not in everything
