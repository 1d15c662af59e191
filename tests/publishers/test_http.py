"""HTTP against receivers that are hostile, odd, or say when to come back."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError, Gone, Permanent, PublishFailure, Retryable
from fencepost.publishers.base import LEASE_MARGIN
from fencepost.publishers.http.connections import MAX_BODY_BYTES
from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.publishers.http.retry_after import MAX_RETRY_AFTER, retry_after
from fencepost.testing import sample_delivery, sample_message
from tests.acceptor import Acceptor
from tests.publishers.http_receiver import Answer, HttpReceiver, plain
from tests.publishers.in_use import Shown, in_use

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
TIMEOUT = 0.4
SLACK = 1.0


def opened(url: str) -> AbstractAsyncContextManager[HttpPublisher]:
    return in_use(HttpPublisher(url))


async def outcome(receiver: HttpReceiver, answer: Answer, *, timeout: float = 5.0) -> PublishFailure | None:
    """Return the failure of a publish that gets this answer, or None where it was delivered."""
    receiver.answers["/hook"] = answer
    async with opened(f"{receiver.url}/hook?allow_private=on&timeout={timeout}") as publisher:
        try:
            await publisher.publish(sample_message(), sample_delivery())
        except PublishFailure as failure:
            return failure
    return None


def raw(*chunks: bytes, then_close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        if then_close:
            writer.close()

    return answer


def dripping(head: bytes, *, every: float = 0.05) -> Answer:
    """Return an answer that sends ``head`` at once and then one byte at a time, for ever."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(every)

    return answer


class TestStatus:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    async def test_2xx_is_delivered(self, receiver: HttpReceiver, status: int) -> None:
        answer = raw(b"HTTP/1.1 204 No Content\r\n\r\n") if status == 204 else plain(status, body=b"fine")
        assert await outcome(receiver, answer) is None

    @pytest.mark.parametrize("status", [401, 408, 425, 429, 500, 502, 503, 504, 599])
    async def test_retryable(self, receiver: HttpReceiver, status: int) -> None:
        failure = await outcome(receiver, plain(status, body=b"come back\nlater"))
        assert isinstance(failure, Retryable)
        assert f"answered {status}: come back later" in str(failure)
        assert failure.delay is None
        assert failure.unavailable is (status in (401, 429, 502, 503, 504))

    async def test_410_says_that_the_receiver_takes_nothing_ever_again(self, receiver: HttpReceiver) -> None:
        failure = await outcome(receiver, plain(410, body=b"unsubscribed"))
        assert isinstance(failure, Gone)
        assert isinstance(failure, Permanent)
        assert "answered 410: unsubscribed" in str(failure)

    @pytest.mark.parametrize("status", [300, 304, 400, 403, 404, 409, 413, 422, 451])
    async def test_permanent(self, receiver: HttpReceiver, status: int) -> None:
        answer = raw(b"HTTP/1.1 304 Not Modified\r\n\r\n") if status == 304 else plain(status, body=b"no")
        failure = await outcome(receiver, answer)
        assert isinstance(failure, Permanent)
        assert not isinstance(failure, Gone)
        assert f"answered {status}" in str(failure)

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_a_redirect_is_permanent_and_not_followed(self, receiver: HttpReceiver, status: int) -> None:
        failure = await outcome(receiver, plain(status, f"Location: {receiver.url}/elsewhere"))
        assert isinstance(failure, Permanent)
        assert [request.target for request in receiver.requests] == ["/hook"]

    async def test_only_the_start_of_the_body_is_quoted_and_made_printable(self, receiver: HttpReceiver) -> None:
        failure = await outcome(receiver, plain(500, body=b"\x00\x1b[31m\xff " + b"y" * 500))
        text = str(failure)
        assert text.isprintable()
        assert text.endswith("?[31m\ufffd " + "y" * 192)


class TestRequest:
    async def test_what_is_sent(self, receiver: HttpReceiver) -> None:
        message = sample_message(
            payload=b"\x00\xff", content_type="application/x-protobuf", headers={"tenant": "a"}
        )
        url = (
            receiver.url.replace("//", "//us%40er:p%3Aw%C3%A9@")
            + "/a%20b?allow_private=on&query=x%3D1%26y%3D%2520z"
        )
        async with opened(url) as publisher:
            await publisher.publish(message, sample_delivery(attempt=2, token=3))
        (request,) = receiver.requests
        assert (request.method, request.target, request.body) == ("POST", "/a%20b?x=1&y=%20z", b"\x00\xff")
        assert request.header("Content-Type") == "application/x-protobuf"
        assert request.header("Content-Length") == "2"
        assert request.header("Host") == f"127.0.0.1:{receiver.port}"
        assert request.header("Authorization") == "Basic " + base64.b64encode("us@er:p:wé".encode()).decode()
        assert request.header("Fencepost-Token") == "3"
        assert request.header("tenant") == "a"
        assert (request.header("User-Agent") or "").startswith("fencepost/")
        assert request.header("Accept-Encoding") == "identity"

    async def test_connections_are_reused_and_limited(self, receiver: HttpReceiver) -> None:
        receiver.answers["/hook"] = plain(200, body=b"read me to the end")
        async with opened(f"{receiver.url}/hook?allow_private=on&max_connections=2") as publisher:
            await asyncio.gather(*(publisher.publish(sample_message(), sample_delivery()) for _ in range(20)))
        assert len(receiver.requests) == 20
        assert receiver.connections <= 2

    async def test_cookies_are_not_kept_and_proxies_not_taken_from_the_environment(
        self, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        receiver.answers["/hook"] = plain(200, "Set-Cookie: session=1; Path=/")
        async with opened(f"{receiver.url}/hook?allow_private=on") as publisher:
            for _ in range(2):
                await publisher.publish(sample_message(), sample_delivery())
        assert [request.header("Cookie") for request in receiver.requests] == [None, None]

    async def test_user_and_password_from_a_file_and_the_environment(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOOK_USER", "us@er")
        (tmp_path / "password").write_text("p:wé\n", encoding="utf-8")
        query = f"allow_private=on&user_env=HOOK_USER&password_file={tmp_path / 'password'}"
        async with opened(f"{receiver.url}/?{query}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
        expected = "Basic " + base64.b64encode("us@er:p:wé".encode()).decode()
        assert receiver.requests[0].header("Authorization") == expected

    async def test_a_bearer_token_that_is_renewed_needs_no_restart(
        self, receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fencepost.publishers.credentials.REREAD_SECONDS", 0.0)
        token = tmp_path / "token"
        token.write_text("first.token\n")
        async with opened(f"{receiver.url}/?allow_private=on&token_file={token}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            token.write_text("second.token")
            await publisher.publish(sample_message(), sample_delivery())
            token.write_text("no\r\nX-Injected: token")
            with pytest.raises(Retryable, match="printable ASCII") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            token.unlink()
            with pytest.raises(Retryable, match=r"token_file=.* cannot be read"):
                await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        assert "Injected" not in str(failure.value)
        sent = [request.header("Authorization") for request in receiver.requests]
        assert sent == ["Bearer first.token", "Bearer second.token"]

    async def test_free_names_and_international_hosts(self) -> None:
        publisher = HttpPublisher("https://bücher.example/ключ?query=a%3D1")
        assert "bücher.example" in repr(publisher)
        assert publisher._own_headers["Host"] == "xn--bcher-kva.example"

    async def test_ipv6_literals_keep_their_brackets(self) -> None:
        async with opened("http://[::1]:9/x?allow_private=on&timeout=1") as publisher:
            with pytest.raises(Retryable, match=r"http://\[::1\]:9/x"):
                await publisher.publish(sample_message(), sample_delivery())

    async def test_a_name_that_does_not_exist_is_retryable(self) -> None:
        async with opened("http://no-such-host.invalid/?timeout=2") as publisher:
            with pytest.raises(Retryable):
                await publisher.publish(sample_message(), sample_delivery())


class TestHostile:
    """Each ends soon after the deadline at the latest, whatever the receiver does."""

    @pytest.fixture(autouse=True)
    def _clock(self) -> None:
        self.started = time.monotonic()

    def took_at_most(self, seconds: float) -> None:
        assert time.monotonic() - self.started <= seconds + SLACK

    @pytest.mark.parametrize(
        "answer",
        [
            dripping(b""),
            dripping(b"HTTP/1.1 200 OK\r\nX-Slow: "),
            raw(b"HTTP/1.1 100 Continue\r\n\r\n"),
            raw(),
        ],
        ids=["no status line", "slow headers", "only 100 Continue", "nothing at all"],
    )
    async def test_no_final_status_before_the_deadline_is_retryable(
        self, receiver: HttpReceiver, answer: Answer
    ) -> None:
        failure = await outcome(receiver, answer, timeout=TIMEOUT)
        self.took_at_most(TIMEOUT)
        assert isinstance(failure, Retryable)

    async def test_endless_interim_answers_are_retryable(self, receiver: HttpReceiver) -> None:
        async def answer(writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)

        failure = await outcome(receiver, answer, timeout=TIMEOUT)
        self.took_at_most(TIMEOUT)
        assert isinstance(failure, Retryable)

    async def test_100_continue_before_the_status_is_ignored(self, receiver: HttpReceiver) -> None:
        assert await outcome(receiver, raw(b"HTTP/1.1 100 Continue\r\n\r\n", OK)) is None

    async def test_endless_headers_are_cut(self, receiver: HttpReceiver) -> None:
        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"X-More: " + b"x" * 1_000 + b"\r\n")
                await writer.drain()

        assert isinstance(await outcome(receiver, answer, timeout=TIMEOUT), Retryable)
        self.took_at_most(TIMEOUT)

    @pytest.mark.parametrize(
        ("status", "expected"), [(200, type(None)), (503, Retryable), (400, Permanent)], ids=["200", "503", "400"]
    )
    async def test_the_status_counts_although_the_body_drips_for_ever(
        self, receiver: HttpReceiver, status: int, expected: type
    ) -> None:
        head = f"HTTP/1.1 {status} S\r\nContent-Length: 1000000\r\n\r\n".encode()
        failure = await outcome(receiver, dripping(head), timeout=TIMEOUT)
        self.took_at_most(TIMEOUT)
        assert isinstance(failure, expected)

    @pytest.mark.parametrize("status", [200, 500])
    async def test_a_gigabyte_is_not_read(self, receiver: HttpReceiver, status: int) -> None:
        sent = 0

        async def answer(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.transport.set_write_buffer_limits(high=65_536)
            writer.write(f"HTTP/1.1 {status} S\r\nContent-Length: {2**30}\r\n\r\n".encode())
            while sent < 2**30:
                writer.write(b"x" * 65_536)
                sent += 65_536
                await writer.drain()

        failure = await outcome(receiver, answer)
        assert (failure is None) is (status == 200)
        await receiver.stop()
        assert sent < 100 * MAX_BODY_BYTES, "what fits into socket buffers, not a gigabyte"

    async def test_a_gzip_bomb_is_not_decoded(self, receiver: HttpReceiver) -> None:
        bomb = gzip.compress(b"\0" * 50_000_000)
        failure = await outcome(receiver, plain(500, "Content-Encoding: gzip", body=bomb))
        assert isinstance(failure, Retryable)
        assert "encoded as 'gzip' and not shown" in str(failure)

    async def test_closed_after_the_request_is_retryable(self, receiver: HttpReceiver) -> None:
        failure = await outcome(receiver, raw(then_close=True))
        assert isinstance(failure, Retryable)
        assert len(receiver.requests) == 1, "it was received, and may be received again"

    @pytest.mark.parametrize(
        ("chunk", "expected"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", type(None)),
            (b"HTTP/1.1 400 No\r\nContent-Length: 10\r\n\r\nhalf", Permanent),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", type(None)),
            (b"HTTP/1.1 200 OK\r\nContent-Le", Retryable),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Retryable),
            (b"HTTP/1.1 abc OK\r\n\r\n", Retryable),
            (b"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n", Retryable),
        ],
    )
    async def test_an_answer_that_breaks_off_or_is_not_http(
        self, receiver: HttpReceiver, chunk: bytes, expected: type
    ) -> None:
        assert isinstance(await outcome(receiver, raw(chunk, then_close=True)), expected)

    async def test_a_long_answer_that_is_not_http_is_quoted_in_part(self, receiver: HttpReceiver) -> None:
        failure = await outcome(receiver, raw(b"y" * 90_000 + b"\r\n\r\n", then_close=True))
        assert isinstance(failure, Retryable)
        assert "RemoteProtocolError: illegal status line" in str(failure)
        assert len(str(failure)) <= 1_000

    async def test_idle_connections_are_given_up_after_a_while(
        self, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(f"{receiver.url}/hook?allow_private=on") as publisher:
            await asyncio.gather(*(publisher.publish(sample_message(), sample_delivery()) for _ in range(20)))
            many = receiver.connections
            connections = publisher._connections
            assert connections is not None
            assert len(connections._open) == many > 1
            for each in connections._open:
                each._idle_until = 0.0
            await publisher.publish(sample_message(), sample_delivery())
            assert len(connections._open) == 1
        assert receiver.connections == many + 1

    async def test_an_idle_connection_that_the_receiver_dropped_is_replaced(self, receiver: HttpReceiver) -> None:
        async with opened(f"{receiver.url}/hook?allow_private=on") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            await receiver.stop()
            await receiver.start()
            await publisher.publish(sample_message(), sample_delivery())
        assert receiver.connections == 2

    async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
        self, receiver: HttpReceiver
    ) -> None:
        given_up = asyncio.Event()

        async def late(writer: asyncio.StreamWriter) -> None:
            await given_up.wait()
            await plain(200)(writer)

        receiver.answers["/hook"] = late
        async with opened(f"{receiver.url}/hook?allow_private=on&timeout=0.3") as publisher:
            for _ in range(3):
                given_up.clear()
                with pytest.raises(Retryable, match="no answer within"):
                    await publisher.publish(sample_message(), sample_delivery())
                given_up.set()
        assert receiver.connections == 3

    @pytest.mark.parametrize("together", [True, False])
    async def test_an_answer_in_advance_is_not_taken_for_the_next_one(
        self, receiver: HttpReceiver, together: bool
    ) -> None:
        delivered, sent = asyncio.Event(), asyncio.Event()

        async def twice(writer: asyncio.StreamWriter) -> None:
            writer.write(OK * 2 if together else OK)
            await writer.drain()
            if not together:
                await delivered.wait()
                writer.write(OK)
                await writer.drain()
            sent.set()

        receiver.answers["/hook"] = twice
        async with opened(f"{receiver.url}/hook?allow_private=on") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            delivered.set()
            await asyncio.wait_for(sent.wait(), 5)
            receiver.answers["/hook"] = plain(500)
            with pytest.raises(Retryable):
                await publisher.publish(sample_message(), sample_delivery())
        assert receiver.connections == 2

    async def test_a_refusal_that_comes_before_all_is_sent_counts(self) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            await answered.wait()  # and reads no more until then

        answered = asyncio.Event()
        async with (
            Acceptor(refuse) as server,
            opened(f"http://127.0.0.1:{server.port}/?allow_private=on&timeout=5") as publisher,
        ):
            with pytest.raises(Permanent, match="answered 413"):
                await publisher.publish(sample_message(payload=b"x" * 20_000_000), sample_delivery())
            self.took_at_most(2)
            answered.set()

    async def test_waiting_for_a_free_connection_counts_as_time(self, receiver: HttpReceiver) -> None:
        receiver.pause()
        async with opened(
            f"{receiver.url}/hook?allow_private=on&timeout={TIMEOUT}&max_connections=1"
        ) as publisher:
            first = asyncio.create_task(publisher.publish(sample_message(), sample_delivery()))
            await asyncio.wait_for(receiver.connected.wait(), 5)
            # The others give up before it does, or its connection might come free at the last moment.
            short = sample_delivery(lease=LEASE_MARGIN + TIMEOUT / 4)
            others = (publisher.publish(sample_message(), short) for _ in range(2))
            results = await asyncio.gather(first, *others, return_exceptions=True)
        self.took_at_most(TIMEOUT)
        assert ["no free connection" in str(result) for result in results] == [False, True, True]
        assert not any(isinstance(result, Retryable) and result.unavailable for result in results)

    async def test_closing_ends_a_publish_at_once(self, receiver: HttpReceiver) -> None:
        receiver.pause()
        async with opened(f"{receiver.url}/hook?allow_private=on&timeout=30&max_connections=1") as publisher:
            waiting = [
                asyncio.create_task(publisher.publish(sample_message(), sample_delivery())) for _ in range(2)
            ]
            await asyncio.wait_for(receiver.connected.wait(), 5)
            await publisher.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            self.took_at_most(TIMEOUT)
            assert all("the publisher was closed" in str(result) for result in results)
            receiver.resume()
            await publisher.publish(sample_message(), sample_delivery())

    async def test_a_receiver_that_never_answers_does_not_delay_the_close(self, receiver: HttpReceiver) -> None:
        receiver.pause()
        async with opened(f"{receiver.url}/hook?allow_private=on&timeout=30") as publisher:
            waiting = asyncio.create_task(publisher.publish(sample_message(), sample_delivery()))
            await asyncio.wait_for(receiver.connected.wait(), 5)
            waiting.cancel()
            await asyncio.wait({waiting})
        self.took_at_most(TIMEOUT)


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("120", 120),
            (" 120 ", 120),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("1e9", None),
            ("+5", None),
            ("٣", None),
            ("120, 60", None),
            ("120 seconds", None),
            ("soon", None),
            ("", None),
            (None, None),
            ("000060", 60),
            ("1000000000", MAX_RETRY_AFTER.total_seconds()),
            ("9" * 10_000, MAX_RETRY_AFTER.total_seconds()),
            (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
            ("Friday, 02-Jan-26 03:05:05 GMT", 60),
            ("Fri Jan  2 03:05:05 2026", 60),
            (format_datetime(NOW - timedelta(seconds=90), usegmt=True), None),
            (format_datetime(NOW, usegmt=True), None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER.total_seconds()),
            ("Fri, 31 Dec 99999 23:59:59 GMT", None),
            ("Fri, 32 Jan 2026 03:05:05 GMT", None),
        ],
    )
    def test_reading(self, header: str | None, seconds: float | None) -> None:
        assert retry_after(header, now=NOW) == (None if seconds is None else timedelta(seconds=seconds))

    def test_a_date_is_compared_with_the_receivers_own_clock(self) -> None:
        date = format_datetime(NOW, usegmt=True)
        until = format_datetime(NOW + timedelta(seconds=30), usegmt=True)
        assert retry_after(until, date, now=NOW + timedelta(days=400)) == timedelta(seconds=30)
        assert retry_after(until, "garbage", now=NOW) == timedelta(seconds=30)

    @given(st.one_of(st.text(), st.from_regex(r"[A-Za-z]{3}, [0-9 ]{1,9} [A-Z][a-z]{2} [0-9:+ -]{1,20}GMT?")))
    def test_no_header_raises_or_asks_for_the_past(self, header: str) -> None:
        delay = retry_after(header)
        assert delay is None or timedelta(0) < delay <= MAX_RETRY_AFTER

    @pytest.mark.parametrize("status", [429, 503])
    async def test_the_delay_reaches_the_dispatcher(self, receiver: HttpReceiver, status: int) -> None:
        failure = await outcome(receiver, plain(status, "Retry-After: 120"))
        assert isinstance(failure, Retryable)
        assert failure.delay == timedelta(seconds=120)

    async def test_a_date_without_a_date_header_is_compared_with_our_clock(self, receiver: HttpReceiver) -> None:
        until = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
        failure = await outcome(receiver, plain(503, f"Retry-After: {until}"))
        assert isinstance(failure, Retryable)
        assert failure.delay is not None
        assert timedelta(seconds=60) < failure.delay <= timedelta(seconds=100)


class TestSecrets:
    SECRETS = ("alice-key", "hunter2!", "s1gn4ture")

    @staticmethod
    def url(receiver: HttpReceiver, extra: str = "") -> str:
        return (
            receiver.url.replace("//", "//alice-key:hunter2%21@")
            + f"/hook?allow_private=on&query=sig%3Ds1gn4ture{extra}"
        )

    def hidden_in(self, text: str) -> None:
        encoded = base64.b64encode(b"alice-key:hunter2!").decode()
        for secret in (*self.SECRETS, "hunter2%21", encoded):
            assert secret not in text

    async def test_never_in_repr_errors_or_logs(self, receiver: HttpReceiver, shown: Shown) -> None:
        failures = []
        async with opened(self.url(receiver, "&timeout=0.3")) as publisher:
            for answer in (plain(200), plain(500), plain(404), raw(), raw(then_close=True)):
                receiver.answers["/hook"] = answer
                failures.append(await shown.publish(publisher))
            await receiver.stop()
            assert isinstance(await shown.publish(publisher), Retryable)
        assert [failure is None for failure in failures] == [True, False, False, False, False]
        self.hidden_in(shown.everything())

    async def test_not_even_when_the_receiver_repeats_the_request(self, receiver: HttpReceiver) -> None:
        async def echo(writer: asyncio.StreamWriter) -> None:
            request = receiver.requests[-1]
            body = json.dumps([request.target, request.header("Authorization"), "x" * 130, "hunter2!"]).encode()
            await plain(400, body=body)(writer)

        receiver.answers["/hook"] = echo
        async with opened(self.url(receiver)) as publisher:
            with pytest.raises(Permanent) as failure:
                await publisher.publish(sample_message(), sample_delivery())
        assert "Basic ***" in str(failure.value)
        self.hidden_in(str(failure.value))
        assert "hunter" not in str(failure.value), "not its start either, cut at the limit of the quotation"


class TestTls:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> Path:
        """Return a PEM file with a self-signed certificate for 127.0.0.1 and its key."""
        path = tmp_path / "server.pem"
        key = tmp_path / "key.pem"
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        )
        subprocess.run(
            [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(path)],
            check=True,
            capture_output=True,
        )
        return path

    @pytest.fixture
    async def secure(self, certificate: Path) -> AsyncIterator[HttpReceiver]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        receiver = HttpReceiver(context)
        await receiver.start()
        yield receiver
        await receiver.stop()

    async def test_an_unknown_authority_is_retryable_and_nothing_is_sent(self, secure: HttpReceiver) -> None:
        async with opened(f"{secure.url}/hook?allow_private=on") as publisher:
            with pytest.raises(Retryable, match=r"CERTIFICATE_VERIFY_FAILED.*self-signed") as failure:
                await publisher.publish(sample_message(), sample_delivery())
        assert failure.value.unavailable
        assert secure.requests == []

    @pytest.mark.parametrize(
        ("name", "day", "said"),
        [
            ("localhost", -1, "certificate has expired"),
            ("other.example", 1, "Hostname mismatch|IP address mismatch"),
        ],
    )
    async def test_an_expired_certificate_and_one_for_another_host(
        self, tmp_path: Path, name: str, day: int, said: str
    ) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        until = datetime.now(UTC) + timedelta(days=day)
        authority.issue_cert(name, not_after=until).configure_cert(context)
        receiver = HttpReceiver(context)
        await receiver.start()
        url = f"https://localhost:{receiver.port}/?allow_private=on&ca={tmp_path / 'ca.pem'}"
        async with opened(url) as publisher:
            with pytest.raises(Retryable, match=said):
                await publisher.publish(sample_message(), sample_delivery())
        await receiver.stop()
        assert receiver.requests == []

    async def test_a_client_certificate(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        authority.issue_cert("fencepost@example.com").private_key_and_cert_chain_pem.write_to_path(
            tmp_path / "client.pem"
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        receiver = HttpReceiver(context)
        await receiver.start()
        url = f"https://localhost:{receiver.port}/?allow_private=on&ca={tmp_path / 'ca.pem'}"
        async with opened(f"{url}&cert={tmp_path / 'client.pem'}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
        async with opened(url) as publisher:
            with pytest.raises(Retryable):
                await publisher.publish(sample_message(), sample_delivery())
        await receiver.stop()
        assert len(receiver.requests) == 1

    def test_tls_files_for_plain_http_are_refused(self, certificate: Path) -> None:
        with pytest.raises(ConfigError, match="ca= has a meaning with https only"):
            HttpPublisher(f"http://example.com/?ca={certificate}")

    async def test_with_its_authority_it_delivers(self, secure: HttpReceiver, certificate: Path) -> None:
        async with opened(f"{secure.url}/hook?allow_private=on&ca={certificate}") as publisher:
            for _ in range(3):
                await publisher.publish(sample_message(payload=b"x" * 500_000), sample_delivery())
        assert len(secure.requests) == 3
        assert secure.connections == 1

    async def test_a_stalled_handshake_is_retryable_and_its_socket_is_closed(self) -> None:
        hung_up = asyncio.Event()

        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            hung_up.set()

        started = time.monotonic()
        async with (
            Acceptor(stall) as server,
            opened(f"https://127.0.0.1:{server.port}/?allow_private=on&timeout={TIMEOUT}") as publisher,
        ):
            with pytest.raises(Retryable, match="ConnectTimeout"):
                await publisher.publish(sample_message(), sample_delivery())
            assert time.monotonic() - started < TIMEOUT + SLACK
            await asyncio.wait_for(hung_up.wait(), SLACK)


async def test_the_lease_shortens_the_deadline(receiver: HttpReceiver) -> None:
    receiver.pause()
    started = time.monotonic()
    async with opened(f"{receiver.url}/hook?allow_private=on") as publisher:
        with pytest.raises(Retryable):
            await publisher.publish(sample_message(), sample_delivery(lease=TIMEOUT))
    assert time.monotonic() - started < TIMEOUT
