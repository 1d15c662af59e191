"""An outbox in partitions by ranges of id, whose history goes by dropping whole tables, as operations.

Optional, and decided while the outbox is empty. Each operation that changes a table does so for one, under a short
lock time-out, in a transaction of its own: who is refused a lock tries again later. Producers never wait for a
table to be made: where there is none for their ids, the rows fall into the default partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.operation import Operation, Statement
from fencepost.errors import ConfigError, SchemaError
from fencepost.store import schema
from fencepost.store.catalog import Catalog, quoted
from fencepost.store.limits import seconds

NO_DEDUPE = "no_dedupe_key_in_a_partitioned_outbox"
"""The constraint that refuses dedupe keys; its name is what a producer in another language gets to see."""

SMALLEST, LARGEST = 1_000, 1_000_000_000
"""Ids in a partition."""

AHEAD = 2
"""Partitions that wait in front of the one that is being written."""

LOCK_MILLISECONDS = 200
"""How long others may have to wait behind one of our locks, at most."""

LOOKED_AT = 20
"""Partitions that one step of dropping looks at."""

_BOUNDS = re.compile(r"FROM \('(-?\d+)'\) TO \('(-?\d+)'\)")
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, for the ids from ``lower`` on and below ``upper``; neither for the default one."""

    name: str
    lower: int | None
    upper: int | None
    rows: int
    """As the last ANALYZE estimated."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """All of them in order, the default one last, and the last id that was drawn."""

    ranges: tuple[Partition, ...]
    default: Partition | None
    default_is_empty: bool
    last_id: int

    @property
    def ahead(self) -> int:
        """How many wait in front of the one that is being written."""
        return sum(each.lower is not None and each.lower > self.last_id for each in self.ranges)


def is_partitioned(catalog: Catalog) -> Operation[bool]:
    """Tell whether the outbox is in partitions."""
    found, _ = yield from _state(catalog)
    return found


def partitions(catalog: Catalog) -> Operation[Partitions]:
    """Return the partitions.

    Raises:
        SchemaError: the outbox is in one table.
    """
    found, last_id = yield from _state(catalog)
    if not found:
        raise SchemaError("the outbox is one table, without partitions")
    rows = yield catalog.statement("partitions/list", _outbox(catalog))
    each = [_partition(*row) for row in rows]
    ranges = sorted((one for one in each if one.lower is not None), key=lambda one: one.lower or 0)
    default = next((one for one in each if one.lower is None), None)
    is_empty = True
    if default is not None:
        is_empty = (yield _of(catalog, "is_empty", default.name))[0][0]
    return Partitions(tuple(ranges), default, is_empty, last_id)


def convert(catalog: Catalog, *, size: int) -> Operation[None]:
    """Make the empty outbox one in partitions of ``size`` ids, at the beginning of a transaction.

    What was granted on the table has to be granted again. Messages with a dedupe key are refused from then on: a
    unique index cannot span partitions.

    Raises:
        SchemaError: it is not empty, is in partitions already, or does not exist.
    """
    _refuse_size(size)
    yield from schema.see_what_others_commit(catalog)
    yield catalog.statement("migration_lock", {"name": catalog.names.placeholders()["outbox"]})
    found, _ = yield from _state(catalog)
    if found:
        raise SchemaError("the outbox is in partitions already")
    yield from _limit_locks(catalog)
    yield catalog.statement("partitions/lock_outbox")
    if not (yield _of(catalog, "is_empty", catalog.names.table))[0][0]:
        raise SchemaError(
            "only an empty outbox can be divided into partitions: let the dispatchers drain it, end what is dead, "
            "and purge with --older-than 0s"
        )
    _, last_id = yield from _state(catalog)
    yield from _rebuild(catalog, first=last_id + 1)
    first = (last_id + 1) // size * size
    for lower in range(first, first + size * (AHEAD + 1), size):
        yield from _create(catalog, lower, lower + size)


def add_partition(catalog: Catalog, *, size: int | None = None, ahead: int = AHEAD) -> Operation[str | None]:
    """Make one more partition, unless ``ahead`` of them wait already; return its name.

    Call it until it returns None, each time in a transaction of its own. Where ids have run past all partitions,
    the next one begins with the next multiple of its size, and what lies in the default one stays there.

    Args:
        size: ids in the new partition; None for as many as in the last one.
        ahead: how many should wait in front of the one that is being written.
    """
    found = yield from partitions(catalog)
    if found.ahead >= ahead:
        return None
    if size is None:
        size = _size_of_last(found.ranges)
    _refuse_size(size)
    yield from _limit_locks(catalog)
    top = max((each.upper or 0 for each in found.ranges), default=0)
    lower = top if top > found.last_id else (found.last_id // size + 1) * size
    return (yield from _create(catalog, lower, lower + size))


def drop_partition(catalog: Catalog, *, older_than: timedelta) -> Operation[str | None]:
    """Drop the first partition of which nothing has to stay; return its name, or None where there is none.

    Call it until it returns None, each time in a fresh transaction of its own. A partition can go when every id of
    it was drawn, and every message in it was done longer ago than ``older_than``. One dead message keeps it.
    """
    yield from schema.see_what_others_commit(catalog)
    found = yield from partitions(catalog)
    written = [each for each in found.ranges if (each.upper or 0) - 1 <= found.last_id]
    for each in written[:LOOKED_AT]:
        kept = yield _of(catalog, "has_kept", each.name, {"older_than": seconds(older_than)})
        if not kept[0][0]:
            return (yield from _drop(catalog, each.name))
    return None


def _drop(catalog: Catalog, name: str) -> Operation[str | None]:
    yield from _limit_locks(catalog)
    yield _of(catalog, "lock", name)
    # Behind the lock, and with a snapshot of its own: whoever drew an id long ago and commits only now was waited
    # for, and its message is seen.
    if (yield _of(catalog, "has_open", name))[0][0]:
        return None
    yield _of(catalog, "drop", name)
    return name


def _rebuild(catalog: Catalog, *, first: int) -> Operation[None]:
    table = catalog.names.table
    marks = {
        "flat": quoted(f"{table}_flat"),
        "sequence": _qualified(catalog, f"{table}_id_seq"),
        "default": _qualified(catalog, f"{table}_default"),
        "no_dedupe": quoted(NO_DEDUPE),
        "first": str(first),
    }
    text = _filled(catalog.statement("partitions/convert").sql, marks)
    for part in schema.statements_of(text):
        yield Statement("partitions/convert", part)


def _create(catalog: Catalog, lower: int, upper: int) -> Operation[str]:
    name = f"{catalog.names.table}_p{lower}"
    if len(name.encode()) > _LONGEST_NAME:
        raise SchemaError(f"{name!r} is too long for the name of a partition: use a table with a shorter name")
    yield _of(catalog, "create", name)
    yield _of(catalog, "attach", name, lower=lower, upper=upper)
    return name


def _state(catalog: Catalog) -> Operation[tuple[bool, int]]:
    rows = yield catalog.statement("partitions/state", _outbox(catalog))
    if not rows:
        raise SchemaError("the tables do not exist: run `fencepost migrate`")
    found, last_id = rows[0]
    return found, last_id or 0


def _partition(name: str, bound: str, rows: int, size: int) -> Partition:
    ends = _BOUNDS.search(bound)
    if ends is None:
        return Partition(name, None, None, rows, size)
    return Partition(name, int(ends[1]), int(ends[2]), rows, size)


def _size_of_last(ranges: Sequence[Partition]) -> int:
    if not ranges:
        raise ConfigError("there is no partition to take the size from: say how many ids the new one is for")
    last = ranges[-1]
    return (last.upper or 0) - (last.lower or 0)


def _refuse_size(size: int) -> None:
    if not SMALLEST <= size <= LARGEST:
        raise ConfigError(f"a partition is for {SMALLEST} to {LARGEST} ids, not for {size}")


def _limit_locks(catalog: Catalog) -> Operation[None]:
    yield catalog.statement("partitions/lock_timeout", {"milliseconds": str(LOCK_MILLISECONDS)})


def _of(
    catalog: Catalog, statement: str, partition: str, params: dict[str, object] | None = None, **bounds: int
) -> Statement:
    """Return a statement about one partition: a name cannot be a parameter, nor can what a definition says."""
    marks = {"partition": _qualified(catalog, partition)} | {name: str(bound) for name, bound in bounds.items()}
    found = catalog.statement(f"partitions/{statement}", params)
    return Statement(found.name, _filled(found.sql, marks), found.params)


def _filled(text: str, marks: dict[str, str]) -> str:
    for mark, value in marks.items():
        text = text.replace("{" + mark + "}", value)
    return text


def _qualified(catalog: Catalog, name: str) -> str:
    return f"{quoted(catalog.names.schema)}.{quoted(name)}"


def _outbox(catalog: Catalog) -> dict[str, str]:
    return {"outbox": catalog.names.placeholders()["outbox"]}
