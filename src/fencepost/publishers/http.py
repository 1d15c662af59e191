"""``http://`` and ``https://`` - one POST a message; a status of 200 to 299 is the acknowledgement.

The receiver is not trusted: it gets one deadline for everything (name lookup, connect, TLS, sending,
answering), no redirect is followed, no cookie is kept, no content is decoded, and at most 64 KiB of its
answer are read, for at most one second after the status line.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING
from urllib.parse import quote

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, PublishFailure, Retryable
from fencepost.publishers.address import MASK, Address, parse_address
from fencepost.publishers.base import Delivery, DestinationPublisher, publish_budget
from fencepost.publishers.headers import outgoing_headers

if TYPE_CHECKING:
    import httpx

DEFAULT_TIMEOUT = 8.0
DEFAULT_MAX_CONNECTIONS = 100
OPTIONS = frozenset({"timeout", "max_connections", "ca", "query"})

CONNECT_SHARE = 0.45
"""Of the time for one message: at most this much for the TCP connect, and as much for the TLS handshake."""
MAX_BODY_BYTES = 65_536
MAX_BODY_SECONDS = 1.0
MAX_BODY_SHOWN = 200
MAX_RETRY_AFTER = timedelta(days=366)
"""Only so that any number of digits fits a timedelta; the dispatcher's backoff cap is the real bound."""

MIN_SECRET_CHARS = 4
"""Shorter ones are no secrets, and masking every '1' would leave an error that nobody can read."""

RETRYABLE_STATUSES = frozenset({408, 425, 429})


class HttpPublisher(DestinationPublisher):
    """Posts each message's payload, byte for byte as stored.

    Args:
        url: ``http[s]://[user:password@]host[:port]/path`` with any of the options ``timeout`` (seconds, 8),
            ``max_connections`` (100), ``ca`` (a PEM file of certificate authorities to trust instead of the
            usual ones) and ``query`` (the receiver's own query string, percent-encoded).

    Raises:
        ConfigError: httpx is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import httpx
        except ImportError:
            raise ConfigError("http and https destinations need httpx: pip install 'fencepost[http]'") from None
        self._httpx = httpx
        address = parse_address(url, options=OPTIONS)
        self._shown = address.display
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._max_connections = address.count("max_connections", DEFAULT_MAX_CONNECTIONS, most=10_000)
        try:
            self._target = httpx.URL(_target(address))
            # What the resolver would refuse at every publish, such as a label of more than 63 characters.
            self._target.raw_host.decode("ascii").encode("idna")
        except (httpx.InvalidURL, ValueError):
            raise ConfigError(f"{address.display} is not a valid URL for HTTP") from None
        self._tls = self._tls_context(address)
        self._user_agent = f"fencepost/{_version()}"
        self._authorization = _basic_auth(address)
        self._secrets = _secrets(address, self._authorization)
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._users: Counter[httpx.AsyncHTTPTransport] = Counter()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Post the payload and return once the receiver answered with a status of 200 to 299.

        Raises:
            Retryable: status 408, 425, 429 or 500 and above (with the receiver's ``Retry-After``), no answer
                before the deadline, or no connection. After a lost connection the receiver may have the
                message all the same: the message id lets it drop the repeat.
            Permanent: any other status, redirects included, or a header that cannot be sent.
        """
        headers = self._headers(message, delivery)
        budget = publish_budget(delivery, self._timeout)
        deadline = time.monotonic() + budget
        request = self._httpx.Request(
            "POST",
            self._target,
            headers=headers,
            content=message.payload,
            # Applies to the TCP connect and to the TLS handshake, each. httpcore does not close the socket of a
            # handshake that is cancelled from outside, so these two must end before our own deadline does.
            extensions={"timeout": {"connect": budget * CONNECT_SHARE}},
        )
        transport = self._open_transport()
        self._users[transport] += 1
        try:
            await self._acknowledged(transport, request, budget, deadline)
        finally:
            await self._leave(transport)

    async def _acknowledged(
        self, transport: httpx.AsyncHTTPTransport, request: httpx.Request, budget: float, deadline: float
    ) -> None:
        try:
            async with asyncio.timeout(budget):
                response = await transport.handle_async_request(request)
        except TimeoutError:
            raise Retryable(f"{self._shown}: no answer within {budget:.1f} s") from None
        except (self._httpx.TransportError, OSError) as error:
            raise Retryable(self._redacted(f"{self._shown}: {type(error).__name__}: {error}")) from None
        try:
            body = await self._short_body(response, min(MAX_BODY_SECONDS, deadline - time.monotonic()))
        finally:
            await response.aclose()
        failure = self._failure(response.status_code, response.headers, body)
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Close the idle connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _leave(self, transport: httpx.AsyncHTTPTransport) -> None:
        self._users[transport] -= 1
        if self._users[transport] == 0:
            del self._users[transport]
            if transport is not self._transport:
                # Closed while this ran: a request that waited for a connection has made a new one since.
                await transport.aclose()

    def _open_transport(self) -> httpx.AsyncHTTPTransport:
        # The transport below httpx's client: the client would log each URL with its query, keep the
        # receiver's cookies for the next message, and take proxies from the environment.
        if self._transport is None:
            limits = self._httpx.Limits(
                max_connections=self._max_connections, max_keepalive_connections=self._max_connections
            )
            self._transport = self._httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=limits)
        return self._transport

    def _tls_context(self, address: Address) -> ssl.SSLContext:
        # Made with the publisher: reading the authorities takes a tenth of a second, too long for the event loop.
        if address.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        path = address.options.get("ca")
        if path is None:
            return self._httpx.create_ssl_context(trust_env=False)
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise ConfigError(
                f"{address.display}: ca={path!r} cannot be read: {error.strerror or error}"
            ) from None

    def _headers(self, message: Message, delivery: Delivery) -> dict[str, str]:
        headers = outgoing_headers(message, delivery)
        headers["User-Agent"] = self._user_agent
        headers["Accept-Encoding"] = "identity"
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        return headers

    async def _short_body(self, response: httpx.Response, seconds: float) -> bytes:
        """Read the start of an answer's body, undecoded. Its status is known: a slow or cut body changes nothing.

        The rest is not wanted. A body that was not read to its end is closed with its connection.
        """
        body = bytearray()
        with contextlib.suppress(TimeoutError, self._httpx.TransportError, OSError):
            async with asyncio.timeout(seconds):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) >= MAX_BODY_BYTES:
                        break
        return bytes(body[:MAX_BODY_BYTES])

    def _failure(self, status: int, headers: httpx.Headers, body: bytes) -> PublishFailure | None:
        if 200 <= status < 300:
            return None
        text = f"{self._shown} answered {status}{self._shown_body(body, headers)}"
        if status in RETRYABLE_STATUSES or 500 <= status < 600:
            return Retryable(text, delay=retry_after(headers.get("retry-after"), headers.get("date")))
        return Permanent(text)

    def _shown_body(self, body: bytes, headers: httpx.Headers) -> str:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            return f" (its body is encoded as {encoding[:20]!r} and not shown)"
        # Secrets first: a cut in the middle of one would leave its start readable.
        text = " ".join(self._redacted(body.decode("utf-8", "replace")).split())
        shown = "".join(char if char.isprintable() else "?" for char in text[:MAX_BODY_SHOWN])
        return f": {shown}" if shown else ""

    def _redacted(self, text: str) -> str:
        """Return ``text`` without our secrets: a receiver's error page may repeat the request it got."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def retry_after(value: str | None, date: str | None = None, *, now: datetime | None = None) -> timedelta | None:
    """Return how long the receiver asked us to wait, or None where it did not say so in a usable way.

    ``Retry-After`` is a number of seconds or an HTTP-date (RFC 9110, section 10.2.3). A date is compared with
    the receiver's own ``Date`` where it sent one, so that its clock and ours need not agree. Anything else, a
    negative number or a date in the past is ignored.

    Args:
        value: the ``Retry-After`` header.
        date: the ``Date`` header of the same answer.
        now: the current instant, for tests.
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        digits = text.lstrip("0")
        seconds = MAX_RETRY_AFTER if len(digits) > 8 else timedelta(seconds=int(digits or "0"))
        return min(seconds, MAX_RETRY_AFTER) or None
    until = _http_date(text)
    if until is None:
        return None
    delay = until - (_http_date(date or "") or now or datetime.now(UTC))
    return min(delay, MAX_RETRY_AFTER) if delay > timedelta(0) else None


def _http_date(text: str) -> datetime | None:
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # An offset of -0000 reads as a naive instant; HTTP dates are always GMT (RFC 9110, section 5.6.7).
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _target(address: Address) -> str:
    """Return the URL to post to, without user information and without our own options."""
    if len(address.hosts) != 1 or not address.hosts[0][0]:
        raise ConfigError(f"{address.display}: a URL for HTTP names exactly one host")
    host, port = address.hosts[0]
    netloc = f"[{host}]" if ":" in host else host
    text = f"{address.scheme}://{netloc}{'' if port is None else f':{port}'}{address.path or '/'}"
    query = address.options.get("query", "")
    return f"{text}?{query}" if query else text


def _basic_auth(address: Address) -> str | None:
    """Return the ``Authorization`` value for the URL's user information (RFC 7617), if there is any."""
    if address.username is None:
        return None
    if ":" in address.username:
        raise ConfigError(f"{address.display}: a user name cannot hold ':' in HTTP Basic authentication")
    credentials = f"{address.username}:{address.password or ''}".encode()
    return "Basic " + base64.b64encode(credentials).decode("ascii")


def _secrets(address: Address, authorization: str | None) -> list[str]:
    """Return every text that must not be shown, the longest first so that none survives in part."""
    found = {address.username or "", address.password or ""}
    if authorization is not None:
        found.add(authorization.removeprefix("Basic "))
    for pair in address.options.get("query", "").split("&"):
        found.add(pair.partition("=")[2])
    found |= {quote(secret, safe="") for secret in found}
    return sorted((text for text in found if len(text) >= MIN_SECRET_CHARS), key=len, reverse=True)


def _version() -> str:
    try:
        return version("fencepost")
    except PackageNotFoundError:
        return "0"
