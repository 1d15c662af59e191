"""fencepost: a transactional outbox for PostgreSQL, with leases, fencing tokens and a dispatcher."""

from fencepost.client.outbox import AsyncOutbox, Outbox
from fencepost.core.draft import JsonText, NewMessage
from fencepost.core.records import Claimed, DeadMessage, Enqueued, Message, Stats
from fencepost.errors import (
    AutocommitRefused,
    ConfigError,
    DedupeConflict,
    Defer,
    EmbeddedError,
    FencepostError,
    InvalidMessage,
    Permanent,
    Retryable,
    SchemaError,
    UnsupportedConnection,
)

__all__ = [
    "AsyncOutbox",
    "AutocommitRefused",
    "Claimed",
    "ConfigError",
    "DeadMessage",
    "DedupeConflict",
    "Defer",
    "EmbeddedError",
    "Enqueued",
    "FencepostError",
    "InvalidMessage",
    "JsonText",
    "Message",
    "NewMessage",
    "Outbox",
    "Permanent",
    "Retryable",
    "SchemaError",
    "Stats",
    "UnsupportedConnection",
]
