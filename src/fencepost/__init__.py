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
from fencepost.core.job import EnqueuedJob, Job, JobChanges, JobInfo, JobPage, JobStats
from fencepost.core.job_stuck import StuckJob, StuckReport
from fencepost.core.ledger import Attempt
from fencepost.core.outcome import Verdict
from fencepost.core.queue import QueueSettings
from fencepost.core.records import BlockedKeys, Claimed, DeadMessage, Enqueued, Finding, Message, Stats
from fencepost.core.routing import Routing, Rule
from fencepost.errors import (
    AutocommitRefused,
    ConfigError,
    DedupeConflict,
    Defer,
    EffectLost,
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
from fencepost.store.schedules import StoredSchedule

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
    "Attempt",
    "AutocommitRefused",
    "BlockedKeys",
    "Claimed",
    "ConfigError",
    "DeadMessage",
    "DedupeConflict",
    "Defer",
    "Delivery",
    "Dispatcher",
    "DispatcherSettings",
    "EffectLost",
    "EmbeddedError",
    "Enqueued",
    "EnqueuedJob",
    "Fence",
    "FencepostError",
    "Finding",
    "Gone",
    "Inbox",
    "InvalidMessage",
    "Job",
    "JobChanges",
    "JobContext",
    "JobInfo",
    "JobPage",
    "JobStats",
    "Jobs",
    "JsonText",
    "LeaseLost",
    "Message",
    "MessageConflict",
    "NewMessage",
    "Outbox",
    "Permanent",
    "Publisher",
    "QueueSettings",
    "Retryable",
    "Route",
    "Routing",
    "Rule",
    "SchemaError",
    "SequenceGap",
    "SoftLimitReached",
    "StaleToken",
    "Stats",
    "StoredSchedule",
    "StuckJob",
    "StuckReport",
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
