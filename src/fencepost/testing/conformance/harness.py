"""A destination under the suite's control, and two harnesses for those who have none to control."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fencepost.testing.conformance.received import Received
from fencepost.testing.fault_proxy import FaultProxy

NETWORK_FAULTS = ("silence", "black_hole", "cut")
FAULTS = ("stop", "pause", "restart", *NETWORK_FAULTS)
"""The capabilities that need a destination which can be stopped, or a proxy in front of it."""


class PublisherHarness(ABC):
    """A real destination under the suite's control. One harness serves one test.

    With a `FaultProxy` in `proxy`, and a publisher that goes through it, the network faults need no further
    code: the suite starts the proxy after `start`, unless you did, and closes it after `close`.
    """

    proxy: FaultProxy | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start the destination, or start it again after `stop`, at the same address."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it: connections break, new ones are refused (the suite has the proxy refuse them)."""

    @abstractmethod
    async def pause(self) -> None:
        """Freeze it (SIGSTOP, or a reader that does not read): connections stay, nothing is answered."""

    @abstractmethod
    async def resume(self) -> None:
        """Let it go on after `pause`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop whatever still runs, in whatever state."""

    @abstractmethod
    def publisher(self) -> object:
        """Return a new publisher whose own time-out is `PublisherConformance.timeout` seconds."""

    @abstractmethod
    async def received(self) -> Sequence[Received]:
        """Return everything that arrived so far, repeats included, in order. Does not go through the proxy.

        It is called after publishes returned, so what they acknowledged must be in it: no waiting.
        """

    @abstractmethod
    def too_large(self) -> bytes:
        """Return a payload above the destination's size limit (never called when opted out)."""

    def unroutable(self) -> tuple[object, str]:
        """Return a new publisher aimed at a place that is not there, and a text that its failure must hold.

        The text is what a person needs to mend it: the name of the missing topic, exchange, stream, queue.
        """
        raise self.missing("unroutable")

    async def restart(self) -> None:
        """Stop the destination and start it again at the same address."""
        await self.stop()
        await self.start()

    async def silence(self) -> None:
        """Let the destination take messages in, while its acknowledgements do not arrive. `heal` ends it."""
        self._proxy("silence").mute()

    async def black_hole(self) -> None:
        """Let nothing pass, either way, without closing a connection. `heal` ends it."""
        self._proxy("black_hole").black_hole()

    async def cut(self) -> None:
        """Reset all connections, once."""
        self._proxy("cut").reset()

    async def cut_next(self, after: int | None) -> None:
        """Reset a connection, once: when so many more bytes were sent, or (None) instead of the next answer."""
        proxy = self._proxy("cut")
        if after is None:
            proxy.cut_answer()
        else:
            proxy.cut_after(after)

    async def heal(self) -> None:
        """End `silence`, `black_hole` and a `cut_next` that has not happened yet."""
        if self.proxy is not None:
            self.proxy.heal()

    def missing(self, capability: str) -> AssertionError:
        """Return what to raise where this harness cannot do something."""
        return AssertionError(
            f"{type(self).__name__} cannot do {capability!r}: write the method, put a FaultProxy into "
            f"its 'proxy', or give the reason in the suite's opt_outs"
        )

    def _proxy(self, capability: str) -> FaultProxy:
        if self.proxy is None:
            raise self.missing(capability)
        return self.proxy


class SimpleHarness(PublisherHarness):
    """A destination that is just there: opt out of `FAULTS`, or use a `ProxiedHarness`.

    Args:
        publisher: makes a new publisher.
        received: returns what arrived so far, or awaits it.
        too_large: a payload above the size limit, where there is one.
        unroutable: as `PublisherHarness.unroutable`.
    """

    def __init__(
        self,
        publisher: Callable[[], object],
        received: Callable[[], Sequence[Received] | Awaitable[Sequence[Received]]],
        *,
        too_large: bytes | None = None,
        unroutable: Callable[[], tuple[object, str]] | None = None,
    ) -> None:
        self._publisher, self._received = publisher, received
        self._too_large, self._unroutable = too_large, unroutable

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        raise self.missing("stop")

    async def pause(self) -> None:
        raise self.missing("pause")

    async def resume(self) -> None:
        raise self.missing("pause")

    async def restart(self) -> None:
        raise self.missing("restart")

    async def close(self) -> None:
        """Nothing to do."""

    def publisher(self) -> object:
        return self._publisher()

    async def received(self) -> Sequence[Received]:
        result = self._received()
        return await result if inspect.isawaitable(result) else result

    def too_large(self) -> bytes:
        if self._too_large is None:
            raise self.missing("too_large")
        return self._too_large

    def unroutable(self) -> tuple[object, str]:
        if self._unroutable is None:
            raise self.missing("unroutable")
        return self._unroutable()


class ProxiedHarness(SimpleHarness):
    """A server that is just there, behind a `FaultProxy` that plays all `FAULTS`.

    Args:
        publisher: makes a new publisher for a port of 127.0.0.1, the proxy's.
        received: as in `SimpleHarness`; straight from the server.
        port: the server's own port.
        host: the server's host.
        too_large: as in `SimpleHarness`.
        unroutable: makes a publisher for the proxy's port; else as in `SimpleHarness`.
    """

    def __init__(
        self,
        publisher: Callable[[int], object],
        received: Callable[[], Sequence[Received] | Awaitable[Sequence[Received]]],
        *,
        port: int,
        host: str = "127.0.0.1",
        too_large: bytes | None = None,
        unroutable: Callable[[int], tuple[object, str]] | None = None,
    ) -> None:
        proxy = self.proxy = FaultProxy(host, port)
        super().__init__(
            lambda: publisher(proxy.port),
            received,
            too_large=too_large,
            unroutable=None if unroutable is None else lambda: unroutable(proxy.port),
        )

    async def start(self) -> None:
        self._proxy("stop").start().heal()

    async def stop(self) -> None:
        self._proxy("stop").refuse()

    async def pause(self) -> None:
        self._proxy("pause").black_hole()

    async def resume(self) -> None:
        self._proxy("pause").heal()

    async def restart(self) -> None:
        await self.stop()
        await self.start()


def opted_out(reason: str, *capabilities: str) -> Mapping[str, str]:
    """Return ``opt_outs`` that share one reason."""
    return dict.fromkeys(capabilities, reason)
