"""The part of `Outbox` and `AsyncOutbox` that is for operators: look, decide about dead messages, set queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from fencepost.client.sending import OnAsync, OnSync, OnTables
from fencepost.core.ledger import Attempt, Kind
from fencepost.core.operation import Operation
from fencepost.core.queue import QueueChanges, QueueSettings, checked_changes, checked_name
from fencepost.core.records import BlockedKeys, DeadMessage, Finding, Stats
from fencepost.errors import ConfigError
from fencepost.store import breaker, doctor, keys, ledger, operators, queues, upkeep


class OperatorOperations(OnTables):
    """What both twins share: how arguments become operations."""

    __slots__ = ()

    notify: bool

    def _attempts(self, identity: int | UUID) -> Operation[list[Attempt]]:
        ids = [identity] if isinstance(identity, int) else (yield from self._ids_of(identity))
        return (yield from ledger.attempts(self.catalog, Kind.MESSAGE, ids))

    def _ids_of(self, message_id: UUID) -> Operation[list[int]]:
        found = yield from operators.show_all(self.catalog, message_id)
        return [each.message.id for each in found]

    def _list_dead(
        self, queue: str | None, outcome: str | None, after: int, limit: int
    ) -> Operation[list[DeadMessage]]:
        return operators.list_dead(self.catalog, queue=queue, outcome=outcome, after=after, limit=limit)

    def _blocked_keys(
        self, queue: str | None, limit: int, after: tuple[str, str] | None, include_leased: bool
    ) -> Operation[BlockedKeys]:
        if limit < 1:
            raise ConfigError("blocked_keys needs a limit above 0")
        return keys.blocked_keys(
            self.catalog, queue=queue, after=after, limit=limit, include_leased=include_leased
        )

    def _set_paused(self, queue: str, paused: bool, actor: str, reason: str | None = None) -> Operation[bool]:
        name = checked_name(queue)
        return queues.set_paused(self.catalog, name, paused, actor=actor, notify=self.notify, reason=reason)

    def _close_breaker(self, queue: str) -> Operation[bool]:
        return breaker.close_breaker(self.catalog, checked_name(queue), version=None, notify=self.notify)

    def _set_queue(self, queue: str, actor: str, changes: QueueChanges) -> Operation[QueueSettings]:
        checked = checked_changes(changes)
        return queues.change(self.catalog, checked_name(queue), checked, actor=actor, notify=self.notify)


class Operators(OperatorOperations, OnSync):
    """The methods of `Outbox`."""

    __slots__ = ()

    def stats(self, conn: Any) -> Stats:
        """Count what is there, by queue and status."""
        return self._run(conn, upkeep.stats(self.catalog))

    def list_dead(
        self, conn: Any, queue: str | None = None, outcome: str | None = None, after: int = 0, limit: int = 100
    ) -> list[DeadMessage]:
        """Return dead messages in id order, starting behind the id ``after``."""
        return self._run(conn, self._list_dead(queue, outcome, after, limit))

    def show(self, conn: Any, identity: int | UUID) -> DeadMessage | None:
        """Return one message in any state, by row id or message id; of several with that, the first."""
        return self._run(conn, operators.show(self.catalog, identity))

    def show_all(self, conn: Any, message_id: UUID) -> list[DeadMessage]:
        """Return the messages with a message id, in any state, by row id.

        There are several where one event goes to several destinations: a message for each of them and, where a
        worker made these, the original before them (``expanded``).
        """
        return self._run(conn, operators.show_all(self.catalog, message_id))

    def attempts(self, conn: Any, identity: int | UUID) -> list[Attempt]:
        """Return what the ledger has of a message, by row id or message id, each attempt with its cause.

        Only of queues that keep one (``set_queue(…, ledger=True)``), and for as long as ``ledger_retention``.
        """
        return self._run(conn, self._attempts(identity))

    def retry_dead(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> list[int]:
        """Put dead messages back to pending with no attempts, audited; return the ids that were dead."""
        operation = operators.retry_dead(self.catalog, ids, actor=actor, reason=reason, notify=self.notify)
        return self._run(conn, operation)

    def skip_dead(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> list[int]:
        """Close dead messages as skipped, audited; return the ids that were dead."""
        return self._run(
            conn, operators.skip_dead(self.catalog, ids, actor=actor, reason=reason, notify=self.notify)
        )

    def blocked_keys(
        self,
        conn: Any,
        queue: str | None = None,
        limit: int = 100,
        after: tuple[str, str] | None = None,
        include_leased: bool = False,
    ) -> BlockedKeys:
        """Return the ordering keys that do not move, a page at a time; ``after`` is where the last one ended.

        A key is blocked where its first open message is dead, or where others wait behind one that is not due
        or that may have crashed a worker. Behind one that is being published they just wait: ``include_leased``.
        """
        return self._run(conn, self._blocked_keys(queue, limit, after, include_leased))

    def queues(self, conn: Any) -> list[QueueSettings]:
        """Return the queues that have settings of their own, by name; all others have the workers'."""
        return self._run(conn, queues.queue_settings(self.catalog))

    def pause_queue(self, conn: Any, queue: str, actor: str, reason: str | None = None) -> bool:
        """Stop claims of a queue, by anybody, once this commits; return False where it was paused before.

        What is being published goes on to its end. The reason is shown for as long as the queue is paused.

        Raises:
            ConfigError: no queue can have this name.
        """
        return self._run(conn, self._set_paused(queue, True, actor, reason))

    def resume_queue(self, conn: Any, queue: str, actor: str) -> bool:
        """Let a paused queue go on; return False where it was not paused.

        Raises:
            ConfigError: no queue can have this name.
        """
        return self._run(conn, self._set_paused(queue, False, actor))

    def close_breaker(self, conn: Any, queue: str) -> bool:
        """Close the breaker of a queue without waiting for a probe; return False where it was not open.

        If its destination still fails, the workers open it again.

        Raises:
            ConfigError: no queue can have this name.
        """
        return self._run(conn, self._close_breaker(queue))

    def set_queue(self, conn: Any, queue: str, actor: str, **changes: Unpack[QueueChanges]) -> QueueSettings:
        """Change settings of a queue for all workers, keep the others, and return what holds.

        None puts a setting back to the workers' own. Numbers of ordering keys (``sequenced``) go on where they
        ended, also after a time without.

        Raises:
            ConfigError: settings that cannot work, by themselves (before any database work) or with those that
                stay.
        """
        return self._run(conn, self._set_queue(queue, actor, changes))

    def doctor(self, conn: Any) -> list[Finding]:
        """Look for what slows the outbox or breaks its order; return what each check found."""
        return self._run(conn, doctor.examine(self.catalog))


class AsyncOperators(OperatorOperations, OnAsync):
    """The methods of `AsyncOutbox`, the twin of `Operators`."""

    __slots__ = ()

    async def stats(self, conn: Any) -> Stats:
        """Count what is there, by queue and status."""
        return await self._run(conn, upkeep.stats(self.catalog))

    async def list_dead(
        self, conn: Any, queue: str | None = None, outcome: str | None = None, after: int = 0, limit: int = 100
    ) -> list[DeadMessage]:
        """Return dead messages in id order, starting behind the id ``after``."""
        return await self._run(conn, self._list_dead(queue, outcome, after, limit))

    async def show(self, conn: Any, identity: int | UUID) -> DeadMessage | None:
        """Return one message in any state, by row id or message id; of several with that, the first."""
        return await self._run(conn, operators.show(self.catalog, identity))

    async def show_all(self, conn: Any, message_id: UUID) -> list[DeadMessage]:
        """Return the messages with a message id, in any state, by row id.

        There are several where one event goes to several destinations: a message for each of them and, where a
        worker made these, the original before them (``expanded``).
        """
        return await self._run(conn, operators.show_all(self.catalog, message_id))

    async def attempts(self, conn: Any, identity: int | UUID) -> list[Attempt]:
        """Return what the ledger has of a message, by row id or message id, each attempt with its cause.

        Only of queues that keep one (``set_queue(…, ledger=True)``), and for as long as ``ledger_retention``.
        """
        return await self._run(conn, self._attempts(identity))

    async def retry_dead(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> list[int]:
        """Put dead messages back to pending with no attempts, audited; return the ids that were dead."""
        operation = operators.retry_dead(self.catalog, ids, actor=actor, reason=reason, notify=self.notify)
        return await self._run(conn, operation)

    async def skip_dead(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> list[int]:
        """Close dead messages as skipped, audited; return the ids that were dead."""
        return await self._run(
            conn, operators.skip_dead(self.catalog, ids, actor=actor, reason=reason, notify=self.notify)
        )

    async def blocked_keys(
        self,
        conn: Any,
        queue: str | None = None,
        limit: int = 100,
        after: tuple[str, str] | None = None,
        include_leased: bool = False,
    ) -> BlockedKeys:
        """Return the ordering keys that do not move, a page at a time; ``after`` is where the last one ended.

        A key is blocked where its first open message is dead, or where others wait behind one that is not due
        or that may have crashed a worker. Behind one that is being published they just wait: ``include_leased``.
        """
        return await self._run(conn, self._blocked_keys(queue, limit, after, include_leased))

    async def queues(self, conn: Any) -> list[QueueSettings]:
        """Return the queues that have settings of their own, by name; all others have the workers'."""
        return await self._run(conn, queues.queue_settings(self.catalog))

    async def pause_queue(self, conn: Any, queue: str, actor: str, reason: str | None = None) -> bool:
        """Stop claims of a queue, by anybody, once this commits; return False where it was paused before.

        What is being published goes on to its end. The reason is shown for as long as the queue is paused.

        Raises:
            ConfigError: no queue can have this name.
        """
        return await self._run(conn, self._set_paused(queue, True, actor, reason))

    async def resume_queue(self, conn: Any, queue: str, actor: str) -> bool:
        """Let a paused queue go on; return False where it was not paused.

        Raises:
            ConfigError: no queue can have this name.
        """
        return await self._run(conn, self._set_paused(queue, False, actor))

    async def close_breaker(self, conn: Any, queue: str) -> bool:
        """Close the breaker of a queue without waiting for a probe; return False where it was not open.

        If its destination still fails, the workers open it again.

        Raises:
            ConfigError: no queue can have this name.
        """
        return await self._run(conn, self._close_breaker(queue))

    async def set_queue(self, conn: Any, queue: str, actor: str, **changes: Unpack[QueueChanges]) -> QueueSettings:
        """Change settings of a queue for all workers, keep the others, and return what holds.

        None puts a setting back to the workers' own. Numbers of ordering keys (``sequenced``) go on where they
        ended, also after a time without.

        Raises:
            ConfigError: settings that cannot work, by themselves (before any database work) or with those that
                stay.
        """
        return await self._run(conn, self._set_queue(queue, actor, changes))

    async def doctor(self, conn: Any) -> list[Finding]:
        """Look for what slows the outbox or breaks its order; return what each check found."""
        return await self._run(conn, doctor.examine(self.catalog))
