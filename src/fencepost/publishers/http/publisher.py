"""``http://`` and ``https://`` - one POST a message; a status of 200 to 299 is the acknowledgement.

The receiver is not trusted: it gets one deadline for everything (name lookup, connect, TLS, sending,
answering), no redirect is followed, no cookie is kept, no content is decoded, and at most 64 KiB of its answer
are read, for at most one second after the status line. Nor is its name: it must not lead to an address inside
(`private_addresses`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Gone, Permanent, PublishFailure, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.base import Delivery, DestinationPublisher, publish_budget
from fencepost.publishers.credentials import TLS_OPTIONS, redacted, tls_context
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.http.authorization import AUTHORIZATION_OPTIONS, Authorization
from fencepost.publishers.http.private_addresses import OPTION, Neighbourhood, literal
from fencepost.publishers.http.retry_after import retry_after
from fencepost.publishers.http.webhook_signature import SECRET_OPTIONS, Signer

if TYPE_CHECKING:
    from fencepost.publishers.http.connections import Answer, Connections

DEFAULT_TIMEOUT = 8.0
DEFAULT_MAX_CONNECTIONS = 100
OPTIONS = (
    frozenset({"timeout", "max_connections", "query", OPTION})
    | ENVELOPE_OPTIONS
    | AUTHORIZATION_OPTIONS
    | SECRET_OPTIONS
    | TLS_OPTIONS
)

MAX_BODY_SHOWN = 200
MAX_ERROR_CHARS = 1_000

GONE = 410
RETRYABLE_STATUSES = frozenset({401, 408, 425, 429})
UNAVAILABLE_STATUSES = frozenset({401, 429, 502, 503, 504})
"""They speak of the sender's login or pace, or of the whole receiver, not of this message."""


class HttpPublisher(DestinationPublisher):
    """Posts each message's payload, byte for byte as stored unless an envelope is chosen.

    Args:
        url: ``http[s]://[user:password@]host[:port]/path`` with any of `OPTIONS`; see docs/destinations/http.md.

    Raises:
        ConfigError: httpx is not installed, or the URL cannot work, or it names an address inside without leave.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import httpx

            from fencepost.publishers.http.connections import Connections
            from fencepost.publishers.http.network import Network
        except ImportError:
            raise ConfigError("http and https destinations need httpx: pip install 'fencepost[http]'") from None
        address = parse_address(url, options=OPTIONS)
        self._shown = address.display
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        most = address.count("max_connections", DEFAULT_MAX_CONNECTIONS, most=10_000)
        neighbourhood = Neighbourhood(address)
        try:
            target = httpx.URL(_target(address))
            host = target.raw_host.decode("ascii")
            # What the resolver would refuse at every publish, such as a label of more than 63 characters.
            host.encode("idna")
        except (httpx.InvalidURL, ValueError):
            raise ConfigError(f"{address.display} is not a valid URL for HTTP") from None
        known = literal(host)
        refusal = neighbourhood.refusal(known) if known is not None else None
        if refusal is not None:
            raise ConfigError(f"{address.display}: {refusal}")
        self._envelope = Envelope(address, prefix="ce-")
        self._authorization = Authorization(address)
        self._signer = Signer(address)
        self._query_values = [pair.partition("=")[2] for pair in address.options.get("query", "").split("&")]
        self._own_headers = {
            "Host": target.netloc.decode("ascii"),
            "User-Agent": f"fencepost/{_version()}",
            "Accept-Encoding": "identity",
        }
        patience = self._timeout / 2
        port = target.port or (443 if address.scheme == "https" else 80)
        network = Network(host, port, _tls(address), neighbourhood, patience=patience)
        self._new_connections: Callable[[], Connections] = lambda: Connections(target.raw_path, network, most)
        self._connections: Connections | None = None

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Post the payload and return once the receiver answered with a status of 200 to 299.

        Raises:
            Retryable: status 401, 408, 425, 429 or 500 and above (with the receiver's ``Retry-After``), no answer
                before the deadline, or no connection. After a lost connection the receiver may have the
                message all the same: the message id lets it drop the repeat.
            Gone: status 410.
            Permanent: any other status, redirects included, or a header that cannot be sent.
        """
        outgoing = self._envelope.wrap(message, delivery)
        headers = {**self._own_headers, **outgoing.headers, "Content-Length": str(len(outgoing.payload))}
        authorization = self._authorization.header()
        if authorization is not None:
            headers["Authorization"] = authorization
        budget = publish_budget(delivery, self._timeout)
        headers |= self._signer.headers(message.message_id_text, outgoing.payload, time.time())
        if self._connections is None:
            self._connections = self._new_connections()
        try:
            answer = await self._connections.post([*headers.items()], outgoing.payload, budget)
        except Retryable as failure:
            # What a receiver sends instead of HTTP is quoted there, up to all of it.
            text = self._redacted(f"{self._shown}: {failure}")[:MAX_ERROR_CHARS]
            raise Retryable(text, unavailable=failure.unavailable) from None
        failed = self._failure(answer)
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """Close the connections; a publish that still waits for its answer fails as retryable."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def _failure(self, answer: Answer) -> PublishFailure | None:
        status = answer.status
        if 200 <= status < 300:
            return None
        text = f"{self._shown} answered {status}{self._shown_body(answer)}"
        if status == GONE:
            return Gone(text)
        if status in RETRYABLE_STATUSES or 500 <= status < 600:
            delay = retry_after(answer.headers.get("retry-after"), answer.headers.get("date"))
            return Retryable(text, delay=delay, unavailable=status in UNAVAILABLE_STATUSES)
        return Permanent(text)

    def _shown_body(self, answer: Answer) -> str:
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            return f" (its body is encoded as {encoding[:20]!r} and not shown)"
        # Secrets first: a cut in the middle of one would leave its start readable.
        text = " ".join(self._redacted(answer.body.decode("utf-8", "replace")).split())
        shown = "".join(char if char.isprintable() else "?" for char in text[:MAX_BODY_SHOWN])
        return f": {shown}" if shown else ""

    def _redacted(self, text: str) -> str:
        """Return ``text`` without our secrets: a receiver's error page may repeat the request it got."""
        return redacted(text, (*self._authorization.secrets(), *self._signer.secrets(), *self._query_values))


def _target(address: Address) -> str:
    """Return the URL to post to, without user information and without our own options."""
    if len(address.hosts) != 1 or not address.hosts[0][0]:
        raise ConfigError(f"{address.display}: a URL for HTTP names exactly one host")
    host, port = address.hosts[0]
    netloc = f"[{host}]" if ":" in host else host
    text = f"{address.scheme}://{netloc}{'' if port is None else f':{port}'}{address.path or '/'}"
    query = address.options.get("query", "")
    return f"{text}?{query}" if query else text


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.scheme == "http":
        useless = sorted(TLS_OPTIONS & address.options.keys())
        if useless:
            raise ConfigError(f"{address.display}: {useless[0]}= has a meaning with https only")
        return None
    # Made with the publisher: reading the authorities takes a tenth of a second, too long for the event loop.
    context = tls_context(address)
    usual = ssl.get_default_verify_paths()
    if "ca" not in address.options and not (usual.cafile or usual.capath):
        import certifi

        context.load_verify_locations(certifi.where())  # a system without authorities, such as macOS
    context.set_alpn_protocols(["http/1.1"])
    return context


def _version() -> str:
    try:
        return version("fencepost")
    except PackageNotFoundError:
        return "0"
