"""Ordering keys: the locks that make id order the order of commits, the numbers, and the promotion.

Park and promote: a claim parks what waits behind a head that is not free, and whoever closes that head promotes
the next one. Three rules keep a parked message from sleeping for ever (``tests/store/test_order_traps.py`` shows
each one missing): only a claim parks, and only while it holds the head's row; two closings of one key never run at
once, and look for parked messages in a statement of their own; a run has no gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fencepost.core.draft import Draft
from fencepost.core.operation import Operation, Rows
from fencepost.errors import ConfigError
from fencepost.store.catalog import Catalog

Key = tuple[str, str]
"""A queue and an ordering key in it."""

PRODUCERS, FINALIZERS = 1, 2
"""Seeds of the two kinds of key locks: a slow business transaction must not hold up a finalize."""


def lock_for_producers(catalog: Catalog, drafts: Iterable[Draft]) -> Operation[frozenset[str]]:
    """Take the keys' locks until the transaction ends, before an id is drawn; return the queues that count.

    So ids follow the order of commits within a key, at every isolation level: a sequence knows no snapshot.
    """
    rows = yield from _lock(catalog, {key for key in map(key_of, drafts) if key is not None}, PRODUCERS)
    return frozenset(queue for queue, _ in rows if queue is not None)


def lock_for_finalize(catalog: Catalog, keys: Iterable[Key]) -> Operation[None]:
    """Take the keys' locks before their messages are closed, so that one closing sees what another one closed.

    Raises:
        ConfigError: the transaction keeps its snapshot, and would close and promote by what was true before it
            had the locks; nothing was changed.
    """
    for _, isolation in (yield from _lock(catalog, set(keys), FINALIZERS)):
        if isolation not in ("read committed", "read uncommitted"):
            raise ConfigError(
                f"this {isolation} transaction cannot close ordered messages, since it does not see what others "
                "commit meanwhile: use a READ COMMITTED one"
            )


def _lock(catalog: Catalog, keys: set[Key], seed: int) -> Operation[Rows]:
    if not keys:
        return []
    table = catalog.names.placeholders()["outbox"]
    return (yield catalog.statement("lock_keys", {"table": table, "seed": seed, **_columns(keys)}))


def try_lock_for_producers(catalog: Catalog, keys: Iterable[Key]) -> Operation[list[tuple[str, str, bool, bool]]]:
    """Take the keys' locks until the transaction ends, as far as nobody holds them.

    Returns:
        Each key's queue and text, whether its lock is ours, and whether the queue counts.
    """
    chosen = set(keys)
    if not chosen:
        return []
    table = catalog.names.placeholders()["outbox"]
    rows = yield catalog.statement("try_lock_keys", {"table": table, "seed": PRODUCERS, **_columns(chosen)})
    return [(queue, key, got, is_counted) for queue, key, got, is_counted in rows]


def draw_numbers(catalog: Catalog, drafts: Iterable[Draft]) -> Operation[list[int]]:
    """Draw the next number of each message's key, in order; their producers' locks are held."""
    return draw_numbers_of(catalog, [key for key in map(key_of, drafts) if key is not None])


def draw_numbers_of(catalog: Catalog, keys: Sequence[Key]) -> Operation[list[int]]:
    """Draw a number for each key as often as it is named, in order; their producers' locks are held."""
    last = yield from _add(catalog, Counter(keys))
    remaining = Counter(keys)
    numbers = []
    for key in keys:
        remaining[key] -= 1
        numbers.append(last[key] - remaining[key])
    return numbers


def give_number_back(catalog: Catalog, draft: Draft) -> Operation[None]:
    """Undo the last draw of a message that was not inserted after all."""
    key = key_of(draft)
    assert key is not None  # noqa: S101 - for the type checker: who has drawn a number has a key
    yield from _add(catalog, {key: -1})


def _add(catalog: Catalog, counts: Mapping[Key, int]) -> Operation[dict[Key, int]]:
    rows = yield catalog.statement("next_sequences", {**_columns(counts), "counts": list(counts.values())})
    return {(queue, key): last for queue, key, last in rows}


def promote(catalog: Catalog, keys: Iterable[Key]) -> Operation[int]:
    """Make the first open message of each key due where it is parked; return how many were.

    It must come in a statement after the one that closed the message before it.
    """
    chosen = set(keys)
    if not chosen:
        return 0
    return len((yield catalog.statement("promote", _columns(chosen))))


def _columns(keys: Iterable[Key]) -> dict[str, list[str]]:
    pairs = list(keys)
    return {"queues": [queue for queue, _ in pairs], "keys": [key for _, key in pairs]}


def key_of(draft: Draft) -> Key | None:
    """Return the queue and ordering key of a message, or None where it is unordered."""
    return None if draft.ordering_key is None else (draft.queue, draft.ordering_key)
