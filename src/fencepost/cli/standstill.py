"""What keeps a queue from going on, for people and for programs: its open breaker, and why it is paused."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from fencepost.cli.output import ago
from fencepost.core.queue import OpenBreaker, QueueSettings

_ERROR_SHOWN = 300


def standstills(queues: Iterable[QueueSettings]) -> list[str]:
    """Return a line for each open breaker, and for each pause that somebody gave a reason for."""
    lines = []
    for each in queues:
        if each.breaker is not None:
            lines.append(f"queue {each.queue}: breaker {open_breaker(each.breaker)}")
        if each.paused and each.pause_reason is not None:
            lines.append(f"queue {each.queue}: paused: {_one_line(each.pause_reason)}")
    return lines


def open_breaker(breaker: OpenBreaker) -> str:
    """Return since when a breaker is open, when the next probe comes, and why."""
    parts = [f"open for {ago(breaker.open_for)}"]
    if breaker.trips:
        parts.append(f"{breaker.trips} probe{'' if breaker.trips == 1 else 's'} failed")
    is_due = breaker.probe_in < timedelta(seconds=1)
    parts.append("next probe due" if is_due else f"next probe in {ago(breaker.probe_in)}")
    text = ", ".join(parts)
    return text if breaker.error is None else f"{text}: {_one_line(breaker.error)}"


def breaker_as_json(breaker: OpenBreaker | None) -> dict[str, Any] | None:
    """Return an open breaker for programs."""
    if breaker is None:
        return None
    return {
        "open_for_seconds": breaker.open_for,
        "probe_in_seconds": max(timedelta(0), breaker.probe_in),
        "probes_failed": breaker.trips,
        "error": breaker.error,
    }


def _one_line(text: str) -> str:
    shown = text if len(text) <= _ERROR_SHOWN else f"{text[:_ERROR_SHOWN]} …"
    return shown.replace("\n", "\\n")
