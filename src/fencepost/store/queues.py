"""The settings of queues, as operations."""

from __future__ import annotations

from datetime import timedelta

from fencepost.core.operation import Operation, Row
from fencepost.core.queue import QueueSettings
from fencepost.store.catalog import Catalog


def queue_settings(catalog: Catalog) -> Operation[list[QueueSettings]]:
    """Return the queues that have settings of their own, by name."""
    rows = yield catalog.statement("queue_settings")
    return [_settings(row) for row in rows]


def _settings(row: Row) -> QueueSettings:
    queue, paused, weight, concurrency, lease, publish_timeout, max_attempts, base, cap, sequenced = row
    return QueueSettings(
        queue=queue,
        paused=paused,
        weight=weight,
        concurrency=concurrency,
        lease=_duration(lease),
        publish_timeout=_duration(publish_timeout),
        max_attempts=max_attempts,
        backoff_base=_duration(base),
        backoff_cap=_duration(cap),
        sequenced=sequenced,
    )


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
