"""`Consumer` and `AsyncConsumer`: a message, its effect in one transaction, and only then its acknowledgement.

```
 message ──► connect ──► inbox.accept ──► handler ──► is the entry there? ──► COMMIT ──► ack
                                │             │                │                 │
                                └─────────────┴── an error ────┴─────────────────┘──► ROLLBACK ──► nack, raised
```

Where the process dies before the COMMIT nothing is left of it, and the message comes again as new; after the
COMMIT it comes again as a repeat, which is acknowledged quietly. The twins differ in nothing but ``await``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

from fencepost.client.inbox import AsyncInbox, Inbox
from fencepost.consumers.incoming import Incoming, as_incoming
from fencepost.consumers.received import Received
from fencepost.core.backoff import Backoff
from fencepost.core.inbox import Acceptance
from fencepost.drivers import async_driver_for, driver_for
from fencepost.drivers.sqlstate import is_for_a_repeat
from fencepost.errors import ConfigError, EffectLost, InvalidMessage
from fencepost.publishers.headers import KEY, KEY_SEQUENCE

logger = logging.getLogger(__name__)

PAUSE = Backoff(base=timedelta(milliseconds=10), cap=timedelta(seconds=1))
"""Between two runs of a handler after a serialization failure or a deadlock."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message inside of the transaction of its effect; true where the effect is to be made now."""

    received: Received
    connection: Any
    acceptance: Acceptance

    def __bool__(self) -> bool:
        return bool(self.acceptance)


@dataclass(frozen=True, slots=True)
class _Options:
    """What both twins share.

    Args:
        in_sequence: take messages in by ``key`` and ``key_sequence``, see `Inbox.accept_in_sequence`: one row for
            each key, and a gap is an error.
        allow_gap: with ``in_sequence``: take a message although some before it are missing.
        first: with ``in_sequence``: the number that a key begins with; None for whichever comes first, where a
            consumer begins in the middle.
        check_body: have another body under an id that was accepted reported. Leave it out where something on the
            way writes bodies anew.
        attempts: how often a handler runs at most, where serialization failures and deadlocks end its transaction.

    Raises:
        ConfigError: a setting that cannot work.
    """

    _: KW_ONLY
    in_sequence: bool = False
    allow_gap: bool = False
    first: int | None = 1
    check_body: bool = True
    attempts: int = 5

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts must be 1 or more, not {self.attempts}")
        if self.allow_gap and not self.in_sequence:
            raise ConfigError("allow_gap has a meaning with in_sequence=True only")
        if self.first != 1 and not self.in_sequence:
            raise ConfigError("first has a meaning with in_sequence=True only")

    def _place(self, received: Received) -> tuple[str, int]:
        """Return the key and the number within it.

        Raises:
            InvalidMessage: the message has none.
        """
        if received.key is None or received.key_sequence is None:
            missing = KEY if received.key is None else KEY_SEQUENCE
            raise InvalidMessage(
                f"message {received.message_id!r} has no {missing}, which in_sequence needs: have the sender's "
                "queue count (fencepost queue set QUEUE --sequenced) and enqueue with an ordering key"
            )
        return received.key, received.key_sequence

    def _runs_again(self, run: int, error: Exception) -> bool:
        return run < self.attempts and is_for_a_repeat(error)


def _lost(received: Received) -> EffectLost:
    return EffectLost(
        f"the transaction of message {received.message_id!r} was rolled back although nothing was raised, so it "
        "is not acknowledged: let errors of the database leave the handler, or handle them in a savepoint, and do "
        "not roll back inside of it"
    )


def _pause(run: int) -> float:
    """Return the seconds to wait after this run, of at least 1."""
    return PAUSE.delay(run, random.random()).total_seconds()  # noqa: S311 - spreads load, keeps no secret


@dataclass(frozen=True, slots=True)
class Consumer(_Options):
    """Takes messages in on sync connections, one at a time for each call.

    Args:
        inbox: notes what was taken in.
        connect: returns a context manager of a connection, such as ``pool.connection``, ``engine.begin`` or
            ``sessionmaker.begin``. It is committed here, whatever its end would do.
    """

    inbox: Inbox
    connect: Callable[[], AbstractContextManager[Any]]

    @contextmanager
    def receive(self, message: Incoming | Received) -> Iterator[Taken]:
        """Provide a message in a transaction, which is committed at the end; then it is acknowledged.

        Make the effect on ``taken.connection`` if ``taken`` is true. A repeat is acknowledged as well.

        Raises:
            InvalidMessage, MessageConflict, SequenceGap, AutocommitRefused: as the inbox says; not acknowledged.
            EffectLost: the transaction was rolled back inside of the block, and nothing was raised.
            ConfigError: the broker's client is async.
        """
        incoming = as_incoming(message)
        with self._settled(incoming), self._transaction(incoming.received) as taken:
            yield taken

    def handler(self, function: Callable[[Received, Any], object]) -> Callable[[Incoming | Received], Acceptance]:
        """Wrap ``def handle(received, connection)``, which makes the effect of a message that is new.

        What comes back takes a message, acknowledges it like `receive`, and returns what became of it. A handler
        whose transaction ends in a serialization failure or a deadlock runs again in a new one.

        Raises:
            ConfigError: the function is async.
        """
        if inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"{function.__qualname__} is async: Consumer needs a plain function, or use AsyncConsumer"
            )

        @wraps(function)
        def handled(message: Incoming | Received) -> Acceptance:
            incoming = as_incoming(message)
            with self._settled(incoming):
                return self._run(function, incoming.received)

        return handled

    def _run(self, function: Callable[[Received, Any], object], received: Received) -> Acceptance:
        run = 1
        while True:
            try:
                with self._transaction(received) as taken:
                    if taken:
                        function(received, taken.connection)
            except Exception as error:
                if not self._runs_again(run, error):
                    raise
            else:
                return taken.acceptance
            time.sleep(_pause(run))
            run += 1

    @contextmanager
    def _settled(self, incoming: Incoming) -> Iterator[None]:
        """Acknowledge at the end, or give the message back after an error."""
        if incoming.is_async:
            raise ConfigError("this message's broker client is async: use AsyncConsumer")
        try:
            yield
        except Exception:
            _call(incoming.nack, "given back", incoming)
            raise
        _call(incoming.ack, "acknowledged", incoming)

    @contextmanager
    def _transaction(self, received: Received) -> Iterator[Taken]:
        if self.in_sequence:
            self._place(received)
        ended = False
        with self.connect() as connection:
            try:
                taken = Taken(received, connection, self._accept(connection, received))
                yield taken
                if taken and not self._stands(connection, received):
                    raise _lost(received)
                driver_for(connection).commit()
            except BaseException:
                with suppress(Exception):  # a connection that is gone has rolled back
                    driver_for(connection).rollback()
                raise
            ended = True
        if not ended:
            raise _lost(received)  # the context manager kept the error to itself

    def _accept(self, connection: Any, received: Received) -> Acceptance:
        if self.in_sequence:
            key, number = self._place(received)
            return self.inbox.accept_in_sequence(connection, key, number, self.allow_gap, self.first)
        body = received.body if self.check_body else None
        return self.inbox.accept(connection, received.message_id, received.token, body)

    def _stands(self, connection: Any, received: Received) -> bool:
        """Tell whether the entry is still there: a COMMIT of a failed transaction rolls back without a word."""
        if not self.in_sequence:
            return self.inbox.has_accepted(connection, received.message_id)
        key, number = self._place(received)
        return (self.inbox.last_in_sequence(connection, key) or 0) >= number


@dataclass(frozen=True, slots=True)
class AsyncConsumer(_Options):
    """Takes messages in on async connections; the twin of `Consumer`.

    Args:
        inbox: notes what was taken in.
        connect: returns an async context manager of a connection, or an awaitable of one, such as
            ``pool.connection``, ``engine.begin``, or ``AsyncConnection.connect`` with its address bound.
    """

    inbox: AsyncInbox
    connect: Callable[[], AbstractAsyncContextManager[Any] | Awaitable[AbstractAsyncContextManager[Any]]]

    @asynccontextmanager
    async def receive(self, message: Incoming | Received) -> AsyncIterator[Taken]:
        """Provide a message in a transaction, which is committed at the end; see `Consumer.receive`."""
        incoming = as_incoming(message)
        async with self._settled(incoming), self._transaction(incoming.received) as taken:
            yield taken

    def handler(
        self, function: Callable[[Received, Any], Awaitable[object]]
    ) -> Callable[[Incoming | Received], Awaitable[Acceptance]]:
        """Wrap ``async def handle(received, connection)``; see `Consumer.handler`.

        Raises:
            ConfigError: the function is not async.
        """
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function!r} is not async: AsyncConsumer needs `async def`, or use Consumer")

        @wraps(function)
        async def handled(message: Incoming | Received) -> Acceptance:
            incoming = as_incoming(message)
            async with self._settled(incoming):
                return await self._run(function, incoming.received)

        return handled

    async def _run(self, function: Callable[[Received, Any], Awaitable[object]], received: Received) -> Acceptance:
        run = 1
        while True:
            try:
                async with self._transaction(received) as taken:
                    if taken:
                        await function(received, taken.connection)
            except Exception as error:
                if not self._runs_again(run, error):
                    raise
            else:
                return taken.acceptance
            await asyncio.sleep(_pause(run))
            run += 1

    @asynccontextmanager
    async def _settled(self, incoming: Incoming) -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            await _acall(incoming.nack, "given back", incoming)
            raise
        await _acall(incoming.ack, "acknowledged", incoming)

    @asynccontextmanager
    async def _transaction(self, received: Received) -> AsyncIterator[Taken]:
        if self.in_sequence:
            self._place(received)
        ended = False
        async with await self._opened() as connection:
            try:
                taken = Taken(received, connection, await self._accept(connection, received))
                yield taken
                if taken and not await self._stands(connection, received):
                    raise _lost(received)
                await async_driver_for(connection).commit()
            except BaseException:
                with suppress(Exception):  # a connection that is gone has rolled back
                    await async_driver_for(connection).rollback()
                raise
            ended = True
        if not ended:
            raise _lost(received)  # the context manager kept the error to itself

    async def _opened(self) -> AbstractAsyncContextManager[Any]:
        made = self.connect()
        return made if isinstance(made, AbstractAsyncContextManager) else await made

    async def _accept(self, connection: Any, received: Received) -> Acceptance:
        if self.in_sequence:
            key, number = self._place(received)
            return await self.inbox.accept_in_sequence(connection, key, number, self.allow_gap, self.first)
        body = received.body if self.check_body else None
        return await self.inbox.accept(connection, received.message_id, received.token, body)

    async def _stands(self, connection: Any, received: Received) -> bool:
        if not self.in_sequence:
            return await self.inbox.has_accepted(connection, received.message_id)
        key, number = self._place(received)
        return (await self.inbox.last_in_sequence(connection, key) or 0) >= number


def _call(settle: Callable[[], object] | None, what: str, incoming: Incoming) -> None:
    """Tell the broker. If that fails the message comes again, as a repeat: it is no error of the effect."""
    if settle is None:
        return
    try:
        answer = settle()
        if inspect.isawaitable(answer):
            _close(answer)
            raise ConfigError("its broker client is async: use AsyncConsumer")
    except Exception as error:
        _log_unsettled(incoming, what, error)
        if isinstance(error, ConfigError):
            raise


async def _acall(settle: Callable[[], object] | None, what: str, incoming: Incoming) -> None:
    if settle is None:
        return
    try:
        answer = settle()
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001 - clients raise what they like, and the effect stands
        _log_unsettled(incoming, what, error)


def _log_unsettled(incoming: Incoming, what: str, error: Exception) -> None:
    logger.warning("message %r could not be %s: %s", incoming.received.message_id, what, error, exc_info=error)


def _close(answer: object) -> None:
    """Close a coroutine that nobody will await."""
    close = getattr(answer, "close", None)
    if close is not None:
        close()
