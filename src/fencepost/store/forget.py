"""Forgetting what is old, in bounded steps: entries of inboxes, and what fences have seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.operation import Operation
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one step forgot, and where the next one begins.

    Args:
        count: how many rows.
        after: the instant of the last of them, in microseconds since 1970; None once there was no more to forget.
    """

    count: int
    after: int | None


def forget(
    catalog: Catalog, statement: str, whose: Mapping[str, str], *, older_than: timedelta, limit: int, after: int
) -> Operation[Forgotten]:
    """Delete at most ``limit`` rows older than ``older_than``, beginning at the instant ``after``.

    Beginning where the last step ended spares each step the walk over what the ones before it left in the index,
    which nobody can remove while an older snapshot is open.
    """
    limit = min(limit, MAX_BATCH)
    rows = yield catalog.statement(
        statement, {**whose, "older_than": seconds(older_than), "limit": limit, "after": float(after)}
    )
    count, last = rows[0]
    return Forgotten(count, last if count == limit else None)
