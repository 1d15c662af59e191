"""`Fence` and `AsyncFence`: a receiver refuses an older fencing token, in the transaction of the write itself.

None of the methods commits or rolls back. The twins differ in nothing but ``await``; what they share is in
`_FenceOperations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from fencepost.client.forgetting import Remembering
from fencepost.client.sending import OnAsync, OnSync
from fencepost.core import fence as core
from fencepost.core.fence import Admission
from fencepost.core.operation import Operation
from fencepost.core.text import checked_name
from fencepost.errors import StaleToken
from fencepost.store import fence as store

T = TypeVar("T")

ADMITTED_IN_AUTOCOMMIT = "a newer holder could write between the check of the token and the write"


@dataclass(frozen=True, slots=True)
class _FenceOperations(Remembering):
    """What both twins share: the settings, and how arguments become operations.

    Args:
        receiver: who compares tokens here, 1 to 100 bytes: each receiver has seen other tokens.

    Raises:
        ConfigError: no such receiver can be, or as `Remembering` says.
    """

    receiver: str

    def __post_init__(self) -> None:
        checked_name("receiver", self.receiver)
        Remembering.__post_init__(self)  # (super() does not find its class in one with slots)

    def _admit(self, resource: str, token: int) -> Operation[Admission]:
        return store.admit(self.catalog, core.entrance(self.receiver, resource, token))

    def _insist(self, resource: str, answer: Admission) -> None:
        if not answer:
            raise StaleToken(self.receiver, resource, token=answer.token, newest=answer.newest)

    def _purge(self, older_than: timedelta, limit: int) -> Operation[int]:
        return self._forget(
            older_than,
            limit,
            "an old holder may come for {horizon} (horizon), and would be let in once the newer token is "
            "forgotten: keep fences at least that long, or give this the horizon of its sender's settings "
            "(DispatcherSettings.redelivery_horizon)",
            lambda after: store.purge(
                self.catalog, self.receiver, older_than=older_than, limit=limit, after=after
            ),
        )


@dataclass(frozen=True, slots=True)
class Fence(_FenceOperations, OnSync):
    """The fence of one receiver on a sync connection."""

    def admit(self, conn: Any, resource: str, token: int) -> Admission:
        """Let a holder in unless a newer one was, in the transaction of its write; true where it may write.

        A token equal to the newest is let in again: it is the same holder. Until the caller's transaction ends,
        whoever comes to the same resource waits; if it rolls back, its token was never seen. At REPEATABLE READ
        and above, what another transaction has committed here since this one's snapshot is the database's
        serialization failure: roll back, and begin again.

        Args:
            conn: the connection that the write is made on.
            resource: what the token belongs to, of 1 to 2048 bytes: `message_resource` or `job_resource`, or
                anything of your own whose token only rises.
            token: the fencing token of this attempt, from 0.

        Raises:
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
        """
        operation = self._admit(resource, token)
        self._refuse_autocommit(conn, ADMITTED_IN_AUTOCOMMIT)
        return self._run(conn, operation)

    def require(self, conn: Any, resource: str, token: int) -> None:
        """Let a holder in as `admit` does, or raise.

        Raises:
            StaleToken: a newer token was let in before.
        """
        self._insist(resource, self.admit(conn, resource, token))

    def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Forget resources that nobody was let into for ``older_than``, one bounded step; return how many.

        Raises:
            ConfigError: ``older_than`` is shorter than the horizon.
        """
        return self._run(conn, self._purge(older_than, limit))


@dataclass(frozen=True, slots=True)
class AsyncFence(_FenceOperations, OnAsync):
    """The fence of one receiver on an async connection; the twin of `Fence`."""

    async def admit(self, conn: Any, resource: str, token: int) -> Admission:
        """Let a holder in unless a newer one was, in the transaction of its write; see `Fence.admit`."""
        operation = self._admit(resource, token)
        await self._refuse_autocommit(conn, ADMITTED_IN_AUTOCOMMIT)
        return await self._run(conn, operation)

    async def require(self, conn: Any, resource: str, token: int) -> None:
        """Let a holder in, or raise; see `Fence.require`."""
        self._insist(resource, await self.admit(conn, resource, token))

    async def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Forget old resources, one bounded step; see `Fence.purge`."""
        return await self._run(conn, self._purge(older_than, limit))
