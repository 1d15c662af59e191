"""What all workers of a queue agree on; it stands in the database, so that a change reaches every one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from fencepost.core.draft import MAX_QUEUE_BYTES
from fencepost.core.lease import timing_problems
from fencepost.errors import ConfigError

USUAL_LEASE = timedelta(seconds=60)
USUAL_PUBLISH_TIMEOUT = timedelta(seconds=10)
"""What workers have unless they are told otherwise (`DispatcherSettings`)."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
_LONGEST = timedelta(days=1)
_YEAR = timedelta(days=365)
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """The open breaker of a queue: nothing of it is claimed but one message now and then, as a probe.

    Args:
        version: rises with every change of the breaker; what a probe brought is written behind it.
        trips: probes that failed so far.
        error: the last failure.
        open_for: time since it opened.
        probe_in: time until the next probe; 0 or less where it is due.
    """

    version: int
    trips: int
    error: str | None
    open_for: timedelta
    probe_in: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """One queue's own settings; None where each worker's setting holds.

    Args:
        queue: its name.
        paused: nothing of it is claimed, by anybody.
        weight: its share of a worker that is busy, 1 to 1,000, against the other queues' weights.
        concurrency: publishes of it in flight at once in each worker, 1 to 10,000.
        lease, publish_timeout, max_attempts, backoff_base, backoff_cap: as in `DispatcherSettings`.
        sequenced: the messages of each ordering key are numbered without a gap as they are enqueued.
        ledger: every attempt at its messages and jobs is written down (`fencepost attempts`).
        rate: messages a second that all dispatchers together claim at most; up to one second's worth at once.
        breaker_failures: failures in a row that open its breaker; 0 for never.
        breaker_cap: the longest time between two probes of an open breaker.
        pause_reason: why it was paused, where whoever did it said so.
        failures_seen: failures to reach its destination in a row, counted by all workers together; not a setting.
        breaker: its breaker where that is open; not a setting either.
        changed_at, changed_by: the last change; None where there was none.
    """

    queue: str
    paused: bool = False
    weight: int = 1
    concurrency: int | None = None
    lease: timedelta | None = None
    publish_timeout: timedelta | None = None
    max_attempts: int | None = None
    backoff_base: timedelta | None = None
    backoff_cap: timedelta | None = None
    sequenced: bool = False
    ledger: bool = False
    rate: float | None = None
    breaker_failures: int | None = None
    breaker_cap: timedelta | None = None
    pause_reason: str | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None
    failures_seen: int = field(default=0, compare=False)
    breaker: OpenBreaker | None = field(default=None, compare=False)

    def problems(self) -> list[tuple[str, str]]:
        """Return (setting, what is wrong) for each that cannot work, whatever the workers' own are."""
        found = [(name, _RULES[name][1]) for name in _RULES if not _holds(name, getattr(self, name))]
        if not found and self.lease is not None and self.publish_timeout is not None:
            found += _timing(self.lease, self.publish_timeout)
        if not found and self.backoff_base is not None and self.backoff_cap is not None:
            found += _backoff(self.backoff_base, self.backoff_cap)
        return found

    def warnings(self) -> list[tuple[str, str]]:
        """Return (setting, what is wrong) where it cannot work together with workers' usual settings.

        A worker whose own settings do not fit does not serve the queue.
        """
        if self.problems() or (self.lease is None) == (self.publish_timeout is None):
            return []
        name, own = ("publish_timeout", "lease") if self.lease is not None else ("lease", "publish_timeout")
        return [
            (own, f"{text}; set {name} as well: a worker with the usual {name} does not serve this queue")
            for _, text in _timing(self.lease or USUAL_LEASE, self.publish_timeout or USUAL_PUBLISH_TIMEOUT)
        ]


class QueueChanges(TypedDict, total=False):
    """New settings of a queue, as keyword arguments of ``set_queue``; None goes back to the workers' own."""

    weight: int | None
    concurrency: int | None
    lease: timedelta | None
    publish_timeout: timedelta | None
    max_attempts: int | None
    backoff_base: timedelta | None
    backoff_cap: timedelta | None
    sequenced: bool | None
    ledger: bool | None
    rate: float | None
    breaker_failures: int | None
    breaker_cap: timedelta | None


CHANGEABLE = tuple(QueueChanges.__annotations__)
"""The settings that ``set_queue`` takes."""

_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(QueueSettings)}


def checked_name(queue: object) -> str:
    """Return the name of a queue.

    Raises:
        ConfigError: no message can have it.
    """
    if not isinstance(queue, str):
        raise ConfigError(f"queue must be text, not {type(queue).__name__}")
    if not _NAME.fullmatch(queue):  # which NUL, surrogates and the empty text are not
        raise ConfigError(f"queue {queue!r} may hold only letters, digits and _ . : -, at least one")
    if len(queue) > MAX_QUEUE_BYTES:
        raise ConfigError(f"queue has {len(queue)} bytes, more than the limit of {MAX_QUEUE_BYTES}")
    return str.__str__(queue)


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is to be changed by itself, before any database work.

    Raises:
        ConfigError: an unknown name, a value that cannot work, or none at all.
    """
    unknown = sorted(set(changes) - set(CHANGEABLE))
    if unknown:
        raise ConfigError(f"queues have no setting {unknown[0]!r}: there are {', '.join(CHANGEABLE)}")
    if not changes:
        raise ConfigError(f"say what to change: {', '.join(CHANGEABLE)}")
    with_changes(QueueSettings(queue="none"), changes)
    return dict(changes)


def with_changes(settings: QueueSettings, changes: Mapping[str, Any]) -> QueueSettings:
    """Return the settings with the changes made; what is not mentioned stays.

    Raises:
        ConfigError: they cannot work together; every problem in one message.
    """
    values = {name: _DEFAULTS[name] if value is None else value for name, value in changes.items()}
    changed = replace(settings, **values)
    if problems := changed.problems():
        raise ConfigError("; ".join(f"{name}: {text}" for name, text in problems))
    return changed


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _span(low: timedelta, high: timedelta) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, timedelta) and low <= value <= high


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _yes_or_no(value: object) -> bool:
    return isinstance(value, bool)


_SMALLEST = timedelta(microseconds=1)
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "weight": (_whole(1, 1_000), "must be a whole number from 1 to 1000"),
    "concurrency": (_whole(1, 10_000), "must be a whole number from 1 to 10000"),
    "lease": (_span(timedelta(milliseconds=100), _LONGEST), "must be a duration from 0.1 s to a day"),
    "publish_timeout": (_span(_SMALLEST, _LONGEST), "must be a duration above 0, at most a day"),
    "max_attempts": (_whole(1, 1_000_000), "must be a whole number from 1 to 1000000"),
    "backoff_base": (_span(_SMALLEST, _YEAR), "must be a duration above 0, at most a year"),
    "backoff_cap": (_span(_SMALLEST, _YEAR), "must be a duration above 0, at most a year"),
    "sequenced": (_yes_or_no, "must be true or false"),
    "ledger": (_yes_or_no, "must be true or false"),
    "rate": (_number(0.001, 1_000_000), "must be a number of messages a second, from 0.001 to 1000000"),
    "breaker_failures": (_whole(0, 1_000_000), "must be a whole number from 0 (never open) to 1000000"),
    "breaker_cap": (_span(_SMALLEST, _LONGEST), "must be a duration above 0, at most a day"),
}


def _holds(name: str, value: object) -> bool:
    return (value is None and _DEFAULTS[name] is None) or _RULES[name][0](value)


def _timing(lease: timedelta, publish_timeout: timedelta) -> list[tuple[str, str]]:
    # Workers beat at least every third of a queue's lease.
    return timing_problems(lease=lease, heartbeat=lease / 3, publish_timeout=publish_timeout)


def _backoff(base: timedelta, cap: timedelta) -> list[tuple[str, str]]:
    if base <= cap:
        return []
    return [("backoff_base", f"{base.total_seconds():g} s is above backoff_cap, {cap.total_seconds():g} s")]
