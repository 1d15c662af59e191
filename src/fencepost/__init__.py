"""fencepost: a transactional outbox for PostgreSQL, with leases, fencing tokens and a dispatcher."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost.client.context import JobContext
from fencepost.client.fence import AsyncFence, Fence
from fencepost.client.inbox import AsyncInbox, Inbox
from fencepost.client.jobs import AsyncJobs, Jobs
from fencepost.client.outbox import AsyncOutbox, Outbox
from fencepost.config import DispatcherSettings, WorkerSettings
from fencepost.core.draft import JsonText, NewMessage
from fencepost.core.fence import Admission, job_resource, message_resource
from fencepost.core.inbox import Acceptance
from fencepost.core.job import Job
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
    LeaseLost,
    MessageConflict,
    Permanent,
    Retryable,
    SchemaError,
    SequenceGap,
    SoftLimitReached,
    StaleToken,
    UnsupportedConnection,
)
from fencepost.publishers.base import Delivery, Publisher
from fencepost.runtime.routes import Route

if TYPE_CHECKING:
    from fencepost.runtime.dispatcher import Dispatcher
    from fencepost.runtime.lifecycle import UnexpectedFailure
    from fencepost.runtime.worker import Worker

__all__ = [
    "Acceptance",
    "Admission",
    "AsyncFence",
    "AsyncInbox",
    "AsyncJobs",
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
    "Fence",
    "FencepostError",
    "Gone",
    "Inbox",
    "InvalidMessage",
    "Job",
    "JobContext",
    "Jobs",
    "JsonText",
    "LeaseLost",
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
    "SoftLimitReached",
    "StaleToken",
    "Stats",
    "UnexpectedFailure",
    "UnsupportedConnection",
    "Verdict",
    "Worker",
    "WorkerSettings",
    "job_resource",
    "message_resource",
]


_RUNTIME = {"Dispatcher": "dispatcher", "UnexpectedFailure": "lifecycle", "Worker": "worker"}


def __getattr__(name: str) -> Any:
    """Import what runs when it is asked for: it needs psycopg with libpq, which a producer may not have."""
    if name in _RUNTIME:
        return getattr(import_module(f"fencepost.runtime.{_RUNTIME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
