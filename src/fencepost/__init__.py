"""fencepost: a transactional outbox for PostgreSQL, with leases, fencing tokens and a dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.client.inbox import AsyncInbox, Inbox
from fencepost.client.outbox import AsyncOutbox, Outbox
from fencepost.config import DispatcherSettings
from fencepost.core.draft import JsonText, NewMessage
from fencepost.core.inbox import Acceptance
from fencepost.core.outcome import Verdict
from fencepost.core.records import Claimed, DeadMessage, Enqueued, Message, Stats
from fencepost.core.routing import Routing, Rule
from fencepost.errors import (
    AutocommitRefused,
    ConfigError,
    DedupeConflict,
    Defer,
    EmbeddedError,
    FencepostError,
    Gone,
    InvalidMessage,
    MessageConflict,
    Permanent,
    Retryable,
    SchemaError,
    SequenceGap,
    UnsupportedConnection,
)
from fencepost.publishers.base import Delivery, Publisher
from fencepost.runtime.routes import Route

if TYPE_CHECKING:
    from fencepost.runtime.dispatcher import Dispatcher, UnexpectedFailure

__all__ = [
    "Acceptance",
    "AsyncInbox",
    "AsyncOutbox",
    "AutocommitRefused",
    "Claimed",
    "ConfigError",
    "DeadMessage",
    "DedupeConflict",
    "Defer",
    "Delivery",
    "Dispatcher",
    "DispatcherSettings",
    "EmbeddedError",
    "Enqueued",
    "FencepostError",
    "Gone",
    "Inbox",
    "InvalidMessage",
    "JsonText",
    "Message",
    "MessageConflict",
    "NewMessage",
    "Outbox",
    "Permanent",
    "Publisher",
    "Retryable",
    "Route",
    "Routing",
    "Rule",
    "SchemaError",
    "SequenceGap",
    "Stats",
    "UnexpectedFailure",
    "UnsupportedConnection",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    """Import the dispatcher when it is asked for: it needs psycopg with libpq, which a producer may not have."""
    if name in ("Dispatcher", "UnexpectedFailure"):
        from fencepost.runtime import dispatcher

        return getattr(dispatcher, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
