"""fencepost: a transactional outbox for PostgreSQL, with leases, fencing tokens and a dispatcher."""

from fencepost.client.outbox import AsyncOutbox, Outbox
from fencepost.config import DispatcherSettings
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
from fencepost.publishers.base import Delivery, Publisher
from fencepost.runtime.dispatcher import Dispatcher, UnexpectedFailure
from fencepost.runtime.routes import Route

__all__ = [
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
    "InvalidMessage",
    "JsonText",
    "Message",
    "NewMessage",
    "Outbox",
    "Permanent",
    "Publisher",
    "Retryable",
    "Route",
    "SchemaError",
    "Stats",
    "UnexpectedFailure",
    "UnsupportedConnection",
]
