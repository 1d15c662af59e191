"""The settings of queues, as operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fencepost.core.error_text import storable
from fencepost.core.operation import Operation, Row
from fencepost.core.queue import OpenBreaker, QueueSettings, with_changes
from fencepost.core.records import instant
from fencepost.store.catalog import Catalog


def queue_settings(catalog: Catalog) -> Operation[list[QueueSettings]]:
    """Return the queues that have settings of their own, by name."""
    rows = yield catalog.statement("queue_settings")
    return [_settings(row) for row in rows]


def change(
    catalog: Catalog, queue: str, changes: Mapping[str, Any], *, actor: str, notify: bool
) -> Operation[QueueSettings]:
    """Change some settings of a queue, keep the others, and wake the workers; return what holds now.

    Raises:
        ConfigError: together with what stood there they cannot work; nothing was changed.
    """
    rows = yield catalog.statement("queue_hold", {"queue": queue})
    before = _settings(rows[0])
    rows = yield catalog.statement("queue_save", _columns(with_changes(before, changes), actor))
    if notify:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return _settings(rows[0])


def set_paused(
    catalog: Catalog,
    queue: str,
    paused: bool,
    *,
    actor: str,
    notify: bool,
    reason: str | None = None,
    age: timedelta | None = None,
) -> Operation[bool]:
    """Pause or resume a queue; return whether that changed anything.

    Args:
        reason: kept while it is paused.
        age: how old what it was decided on is. Where somebody changed the queue since then, that stands.
    """
    rows = yield catalog.statement("queue_hold", {"queue": queue})
    before = _settings(rows[0])
    is_newer = before.changed_by is not None and age is not None and rows[0][-1] <= age.total_seconds()
    if before.paused is paused or is_newer:
        return False
    after = replace(before, paused=paused, pause_reason=reason if paused else None)
    yield catalog.statement("queue_save", _columns(after, actor))
    if notify and not paused:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return True


def has_open(catalog: Catalog, queue: str) -> Operation[bool]:
    """Tell whether a queue holds a message that is not done."""
    rows = yield catalog.statement("queue_has_open", {"queue": queue})
    return bool(rows)


def _columns(settings: QueueSettings, actor: str) -> dict[str, Any]:
    return {
        "queue": settings.queue,
        "paused": settings.paused,
        "pause_reason": None if settings.pause_reason is None else storable(settings.pause_reason),
        "weight": settings.weight,
        "concurrency": settings.concurrency,
        "lease": _seconds(settings.lease),
        "publish_timeout": _seconds(settings.publish_timeout),
        "max_attempts": settings.max_attempts,
        "backoff_base": _seconds(settings.backoff_base),
        "backoff_cap": _seconds(settings.backoff_cap),
        "sequenced": settings.sequenced,
        "ledger": settings.ledger,
        "rate": settings.rate,
        "breaker_failures": settings.breaker_failures,
        "breaker_cap": _seconds(settings.breaker_cap),
        "actor": storable(actor),
    }


def _settings(row: Row) -> QueueSettings:
    queue, paused, weight, concurrency, lease, publish_timeout, max_attempts, base, cap, sequenced = row[:10]
    rate, breaker_failures, breaker_cap, pause_reason, changed_at, changed_by = row[10:16]
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
        rate=rate,
        breaker_failures=breaker_failures,
        breaker_cap=_duration(breaker_cap),
        pause_reason=pause_reason,
        changed_at=instant(changed_at),
        changed_by=changed_by,
        ledger=row[16],
        failures_seen=row[17],
        breaker=_breaker(*row[18:23]),
    )


def _breaker(
    version: int, trips: int, error: str | None, open_for: float | None, probe_in: float | None
) -> OpenBreaker | None:
    if open_for is None or probe_in is None:
        return None
    return OpenBreaker(version, trips, error, timedelta(seconds=open_for), timedelta(seconds=probe_in))


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
