"""`Inbox` and `AsyncInbox`: a consumer takes a message in once, in the transaction of its effect.

None of the methods commits or rolls back. The twins differ in nothing but ``await``; what they share is in
`_InboxOperations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from fencepost.client.forgetting import Remembering
from fencepost.client.sending import OnAsync, OnSync
from fencepost.core import inbox as core
from fencepost.core.inbox import Acceptance, Body
from fencepost.core.number import checked_number
from fencepost.core.operation import Operation
from fencepost.core.text import checked_name
from fencepost.store import inbox as store

T = TypeVar("T")

ACCEPTED_IN_AUTOCOMMIT = "the message would be taken in apart from its effect"


@dataclass(frozen=True, slots=True)
class _InboxOperations(Remembering):
    """What both twins share: the settings, and how arguments become operations.

    Args:
        consumer: whose effects these are, 1 to 100 bytes: each consumer takes every message in for itself.

    Raises:
        ConfigError: no such consumer can be, or as `Remembering` says.
    """

    consumer: str

    def __post_init__(self) -> None:
        checked_name("consumer", self.consumer)
        Remembering.__post_init__(self)  # (super() does not find its class in one with slots)

    def _accept(self, message_id: UUID | str, fence: int | None, body: Body | None) -> Operation[Acceptance]:
        return store.accept(self.catalog, core.entry(self.consumer, message_id, fence, body))

    def _accept_in_sequence(
        self, key: str, sequence: int, allow_gap: bool, first: int | None
    ) -> Operation[Acceptance]:
        number = checked_number("sequence", sequence, least=1)
        begin = None if first is None else checked_number("first", first, least=1)
        checked = core.checked_key(key)
        return store.accept_in_sequence(
            self.catalog, self.consumer, checked, number, allow_gap=allow_gap, first=begin
        )

    def _has_accepted(self, message_id: UUID | str) -> Operation[bool]:
        entry = core.entry(self.consumer, message_id, None, None)
        return store.has_accepted(self.catalog, self.consumer, entry.message_id)

    def _last_in_sequence(self, key: str) -> Operation[int | None]:
        return store.last_in_sequence(self.catalog, self.consumer, core.checked_key(key))

    def _purge(self, older_than: timedelta, limit: int) -> Operation[int]:
        return self._forget(
            older_than,
            limit,
            "a message can come again for {horizon} (horizon), and its effect would be made twice: keep entries "
            "at least that long, or give this inbox the horizon of its sender's settings "
            "(DispatcherSettings.redelivery_horizon)",
            lambda after: store.purge(
                self.catalog, self.consumer, older_than=older_than, limit=limit, after=after
            ),
        )


@dataclass(frozen=True, slots=True)
class Inbox(_InboxOperations, OnSync):
    """The inbox of one consumer on a sync connection."""

    def accept(
        self, conn: Any, message_id: UUID | str, fence: int | None = None, body: Body | None = None
    ) -> Acceptance:
        """Take a message in, in the caller's transaction; true where its effect is to be made now.

        Where another transaction is at the same message, this waits for its end: if that commits, this is a
        repeat; if it rolls back, the message is ours. At REPEATABLE READ and above such a wait may instead end in
        the database's serialization failure: roll back, and take the message again.

        Args:
            conn: the connection that the effect is written on.
            message_id: the stable id of the message, of 1 to 512 bytes; ``A`` and ``a`` are two.
            fence: the fencing token of this attempt. It only tells `Acceptance.STALE` from `Acceptance.REPEAT`.
            body: the message as it was received; where given each time, another one under the same id is reported.

        Raises:
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
            MessageConflict: the id was accepted with another body; the transaction stays usable.
        """
        operation = self._accept(message_id, fence, body)
        self._refuse_autocommit(conn, ACCEPTED_IN_AUTOCOMMIT)
        return self._run(conn, operation)

    def accept_in_sequence(
        self, conn: Any, key: str, sequence: int, allow_gap: bool = False, first: int | None = 1
    ) -> Acceptance:
        """Take in the next message of a key that is numbered without a gap, in the caller's transaction.

        It keeps one row for each key instead of one for each message.

        Args:
            conn: the connection that the effect is written on.
            key: the ordering key, of 1 to 2048 bytes.
            sequence: the message's number, from 1.
            allow_gap: take it although messages before it are missing; they are repeats when they come.
            first: the number that a key begins with. None lets a key begin with whichever comes first, for a
                consumer that begins in the middle: where two of them come at once, the earlier one may be lost.

        Raises:
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
            SequenceGap: messages before it are missing; nothing was changed, and the transaction stays usable.
        """
        operation = self._accept_in_sequence(key, sequence, allow_gap, first)
        self._refuse_autocommit(conn, ACCEPTED_IN_AUTOCOMMIT)
        return self._run(conn, operation)

    def has_accepted(self, conn: Any, message_id: UUID | str) -> bool:
        """Tell whether this message is taken in, as far as this transaction sees; it waits for nobody.

        Raises:
            InvalidMessage: as `accept`.
        """
        return self._run(conn, self._has_accepted(message_id))

    def last_in_sequence(self, conn: Any, key: str) -> int | None:
        """Return the last number of a key that was taken in, None where there was none.

        The key is held until the transaction ends, so that nobody else can move it on meanwhile.

        Raises:
            InvalidMessage: as `accept_in_sequence`.
        """
        return self._run(conn, self._last_in_sequence(key))

    def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Forget messages that were taken in longer ago than ``older_than``, one bounded step; return how many.

        Raises:
            ConfigError: ``older_than`` is shorter than the horizon.
        """
        return self._run(conn, self._purge(older_than, limit))


@dataclass(frozen=True, slots=True)
class AsyncInbox(_InboxOperations, OnAsync):
    """The inbox of one consumer on an async connection; the twin of `Inbox`."""

    async def accept(
        self, conn: Any, message_id: UUID | str, fence: int | None = None, body: Body | None = None
    ) -> Acceptance:
        """Take a message in, in the caller's transaction; see `Inbox.accept`."""
        operation = self._accept(message_id, fence, body)
        await self._refuse_autocommit(conn, ACCEPTED_IN_AUTOCOMMIT)
        return await self._run(conn, operation)

    async def accept_in_sequence(
        self, conn: Any, key: str, sequence: int, allow_gap: bool = False, first: int | None = 1
    ) -> Acceptance:
        """Take in the next message of a key, in the caller's transaction; see `Inbox.accept_in_sequence`."""
        operation = self._accept_in_sequence(key, sequence, allow_gap, first)
        await self._refuse_autocommit(conn, ACCEPTED_IN_AUTOCOMMIT)
        return await self._run(conn, operation)

    async def has_accepted(self, conn: Any, message_id: UUID | str) -> bool:
        """Tell whether this message is taken in; see `Inbox.has_accepted`."""
        return await self._run(conn, self._has_accepted(message_id))

    async def last_in_sequence(self, conn: Any, key: str) -> int | None:
        """Return the last number of a key and hold the key; see `Inbox.last_in_sequence`."""
        return await self._run(conn, self._last_in_sequence(key))

    async def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Forget old messages, one bounded step; see `Inbox.purge`."""
        return await self._run(conn, self._purge(older_than, limit))
