"""From a host's name to a connection: looked up once, every address judged, connected to one that was judged.

There is no second look-up in which a name could come to mean another address (DNS rebinding), and a resolver that
hangs holds one thread of its own, not those of the event loop's executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import cast

from fencepost.errors import Retryable
from fencepost.publishers.http.private_addresses import Neighbourhood

MAX_ADDRESSES = 4
"""How many of a name's addresses are tried."""
MAX_UNREAD_BYTES = 131_072
"""What a receiver may send before we read it; after that its own sends wait."""


class Network:
    """Makes connections to one host.

    Args:
        host: a name in ASCII, or an address without brackets.
        port: of the host.
        tls: None for plain TCP.
        neighbourhood: which addresses may be connected to.
        patience: seconds after which a time-out speaks of the host; one that was given less time says nothing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        neighbourhood: Neighbourhood,
        *,
        patience: float,
    ) -> None:
        self._host, self._port, self._tls, self._neighbourhood = host, port, tls, neighbourhood
        self._patience = patience
        self._lookup: asyncio.Future[list[str]] | None = None

    async def connect(self, seconds: float) -> Stream:
        """Return a new connection, its TLS handshake done.

        Raises:
            Retryable: name lookup, TCP or TLS failed or took too long, or the name leads to a refused address.
        """
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._addresses()
        except TimeoutError:
            text = f"the name {self._host!r} was not looked up within {seconds:.1f} s"
            raise Retryable(text, unavailable=seconds >= self._patience) from None
        except OSError as error:
            raise _no_way(f"the name {self._host!r} cannot be looked up: {error.strerror or error}") from None
        for address in addresses:
            # All of them: which one is tried last must not decide.
            refusal = self._neighbourhood.refusal(address)
            if refusal is not None:
                raise _no_way(f"not connected: {refusal}")
        return await self._first_of(_alternating(addresses)[:MAX_ADDRESSES], deadline)

    async def _first_of(self, addresses: list[str], deadline: float) -> Stream:
        failures: list[str] = []
        unavailable = deadline - time.monotonic() >= self._patience / 2
        for place, address in enumerate(addresses):
            share = (deadline - time.monotonic()) / (len(addresses) - place)
            try:
                async with asyncio.timeout(share):
                    _, stream = await asyncio.get_running_loop().create_connection(
                        Stream,
                        address,
                        self._port,
                        ssl=self._tls,
                        server_hostname=self._host.rstrip(".") if self._tls is not None else None,
                    )
                    return stream
            except TimeoutError:
                failures.append(f"ConnectTimeout: no connection to {address} within {share:.1f} s")
            except OSError as error:
                failures.append(f"{type(error).__name__}: {error}")
                unavailable = True
        raise Retryable("; ".join(failures), unavailable=unavailable)

    async def _addresses(self) -> list[str]:
        with contextlib.suppress(ValueError):
            return [str(ip_address(self._host))]
        running = self._lookup is not None and not self._lookup.done()
        if self._lookup is None or not running or self._lookup.get_loop() is not asyncio.get_running_loop():
            self._lookup = _looked_up(self._host, self._port)
        # Shared, so that it must not be cancelled with one of those that wait for it.
        await asyncio.wait({self._lookup})
        return self._lookup.result()


class Stream(asyncio.Protocol):
    """A connection. It has no time-outs: the publisher has one deadline for everything."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_ended = self._is_paused = False
        self._error: Exception | None = None
        self._readable = asyncio.Event()

    @property
    def is_quiet(self) -> bool:
        """Whether all was sent, nothing waits to be read, and the other side did not close."""
        if self._received or self._is_ended or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() == 0

    def write(self, data: bytes) -> None:
        """Send this, in the background: an answer that comes before all is sent counts as well.

        Raises:
            OSError: the connection is closed.
        """
        if self._is_ended or self._transport is None:
            raise ConnectionResetError("the connection was closed")
        self._transport.write(data)

    async def read(self) -> bytes:
        """Return what arrived, at least one byte; nothing at the end of the connection.

        Raises:
            OSError: the connection broke.
        """
        while not self._received:
            if isinstance(self._error, OSError):
                raise self._error
            if self._is_ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        taken = bytes(self._received)
        self._received.clear()
        if self._is_paused and self._transport is not None and not self._is_ended:
            self._is_paused = False
            self._transport.resume_reading()
        return taken

    def abort(self) -> None:
        """Close at once, whatever is under way: whoever closes has had the answer, or has given it up."""
        self._is_ended = True
        self._readable.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are none of asyncio's classes, they only behave like them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= MAX_UNREAD_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._readable.set()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self._is_ended = True
        self._error = self._error or error
        self._readable.set()


def _no_way(text: str) -> Retryable:
    return Retryable(text, unavailable=True)


def _looked_up(host: str, port: int) -> asyncio.Future[list[str]]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more

    def settle(addresses: list[str] | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(addresses or [])

    def look_up() -> None:
        addresses, failure = None, None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        except Exception as error:  # noqa: BLE001 - whatever it is goes to those who wait
            failure = error if isinstance(error, OSError) else OSError(str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, addresses, failure)

    # A daemon, so that a resolver that hangs does not hold up the end of the process.
    threading.Thread(target=look_up, name=f"lookup-{host[:40]}", daemon=True).start()
    return future


def _alternating(addresses: list[str]) -> list[str]:
    """Return them with IPv6 and IPv4 in turn, so that one kind that leads nowhere leaves time for the other."""
    first_kind = ":" in addresses[0] if addresses else False
    ours = [each for each in addresses if (":" in each) is first_kind]
    others = [each for each in addresses if (":" in each) is not first_kind]
    return [each for each in chain.from_iterable(zip_longest(ours, others)) if each is not None]
