"""HTTP against receivers that are hostile, odd, or say when to come back."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import ssl
import subprocess
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Permanent, PublishFailure, Retryable
from fencepost.publishers.http import MAX_BODY_BYTES, MAX_RETRY_AFTER, HttpPublisher, retry_after
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.http_receiver import Answer, HttpReceiver, plain

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
TIMEOUT = 0.4
SLACK = 1.0


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[HttpPublisher]:
    publisher = HttpPublisher(url)
    await publisher.open()
    try:
        yield publisher
    finally:
        await publisher.close()


async def outcome(receiver: HttpReceiver, answer: Answer, *, timeout: float = 5.0) -> PublishFailure | None:
    """Return the failure of a publish that gets this answer, or None where it was delivered."""
    receiver.answers["/hook"] = answer
    async with opened(f"{receiver.url}/hook?timeout={timeout}") as publisher:
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

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
    async def test_retryable(self, receiver: HttpReceiver, status: int) -> None:
        failure = await outcome(receiver, plain(status, body=b"come back\nlater"))
        assert isinstance(failure, Retryable)
        assert f"answered {status}: come back later" in str(failure)
        assert failure.delay is None

    @pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 409, 410, 413, 422, 451])
    async def test_permanent(self, receiver: HttpReceiver, status: int) -> None:
        answer = raw(b"HTTP/1.1 304 Not Modified\r\n\r\n") if status == 304 else plain(status, body=b"no")
        failure = await outcome(receiver, answer)
        assert isinstance(failure, Permanent)
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
        url = receiver.url.replace("//", "//us%40er:p%3Aw%C3%A9@") + "/a%20b?query=x%3D1%26y%3D%2520z"
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
        async with opened(f"{receiver.url}/hook?max_connections=2") as publisher:
            await asyncio.gather(*(publisher.publish(sample_message(), sample_delivery()) for _ in range(20)))
        assert len(receiver.requests) == 20
        assert receiver.connections <= 2

    async def test_cookies_are_not_kept_and_proxies_not_taken_from_the_environment(
        self, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        receiver.answers["/hook"] = plain(200, "Set-Cookie: session=1; Path=/")
        async with opened(f"{receiver.url}/hook") as publisher:
            for _ in range(2):
                await publisher.publish(sample_message(), sample_delivery())
        assert [request.header("Cookie") for request in receiver.requests] == [None, None]

    async def test_ipv6_literals_keep_their_brackets(self) -> None:
        async with opened("http://[::1]:9/x?timeout=1") as publisher:
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

    async def test_an_idle_connection_that_the_receiver_dropped_is_replaced(self, receiver: HttpReceiver) -> None:
        async with opened(f"{receiver.url}/hook") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            await receiver.stop()
            await receiver.start()
            await publisher.publish(sample_message(), sample_delivery())
        assert receiver.connections == 2

    async def test_a_receiver_that_never_answers_does_not_delay_the_close(self, receiver: HttpReceiver) -> None:
        receiver.pause()
        async with opened(f"{receiver.url}/hook?timeout=30") as publisher:
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
        return receiver.url.replace("//", "//alice-key:hunter2%21@") + f"/hook?query=sig%3Ds1gn4ture{extra}"

    def hidden_in(self, text: str) -> None:
        encoded = base64.b64encode(b"alice-key:hunter2!").decode()
        for secret in (*self.SECRETS, "hunter2%21", encoded):
            assert secret not in text

    async def test_never_in_repr_errors_or_logs(
        self, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        texts: list[str] = []
        async with opened(self.url(receiver, "&timeout=0.3")) as publisher:
            texts.append(repr(publisher))
            for answer in (plain(200), plain(500), plain(404), raw(), raw(then_close=True)):
                receiver.answers["/hook"] = answer
                try:
                    await publisher.publish(sample_message(), sample_delivery())
                except PublishFailure as failure:
                    texts += [str(failure), "".join(traceback.format_exception(failure))]
            await receiver.stop()
            with pytest.raises(Retryable) as refused:
                await publisher.publish(sample_message(), sample_delivery())
            texts.append(str(refused.value))
        assert len(texts) == 10
        self.hidden_in("\n".join([*texts, caplog.text, *capfd.readouterr()]))

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
        async with opened(f"{secure.url}/hook") as publisher:
            with pytest.raises(Retryable, match="CERTIFICATE_VERIFY_FAILED"):
                await publisher.publish(sample_message(), sample_delivery())
        assert secure.requests == []

    async def test_with_its_authority_it_delivers(self, secure: HttpReceiver, certificate: Path) -> None:
        async with opened(f"{secure.url}/hook?ca={certificate}") as publisher:
            await publisher.publish(sample_message(), sample_delivery())
        assert len(secure.requests) == 1

    async def test_a_stalled_handshake_is_retryable_and_its_socket_is_closed(self) -> None:
        hung_up = asyncio.Event()

        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            hung_up.set()

        server = await asyncio.start_server(stall, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        started = time.monotonic()
        async with server, opened(f"https://127.0.0.1:{port}/?timeout={TIMEOUT}") as publisher:
            with pytest.raises(Retryable, match="ConnectTimeout"):
                await publisher.publish(sample_message(), sample_delivery())
            assert time.monotonic() - started < TIMEOUT + SLACK
            await asyncio.wait_for(hung_up.wait(), SLACK)


async def test_the_lease_shortens_the_deadline(receiver: HttpReceiver) -> None:
    receiver.pause()
    started = time.monotonic()
    async with opened(f"{receiver.url}/hook") as publisher:
        with pytest.raises(Retryable):
            await publisher.publish(sample_message(), sample_delivery(lease=TIMEOUT))
    assert time.monotonic() - started < TIMEOUT
