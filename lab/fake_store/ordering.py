"""Ordering keys: their locks, their numbers, and what lets parked messages go on."""

from __future__ import annotations

from collections import defaultdict

from fencepost.core.operation import Row
from lab.fake_store.hashing import hashtextextended
from lab.fake_store.messages import heads, of_key, open_rows, with_ids
from lab.fake_store.rows import KEY, OUTBOX, QUEUE, KeyRow, OutboxRow
from lab.fake_store.turn import Params, Turn


def _pairs(params: Params) -> list[tuple[str, str]]:
    return list(zip(params["queues"], params["keys"], strict=True))


def _number_of(params: Params, pair: tuple[str, str]) -> int:
    return hashtextextended(" ".join((params["table"], *pair)), params["seed"])


async def lock_keys(turn: Turn, params: Params) -> list[Row]:
    """Answer ``lock_keys``."""
    counted = [row.queue for row in turn.rows(QUEUE) if row.sequenced and row.queue in params["queues"]]
    for pair in sorted(set(_pairs(params)), key=lambda pair: _number_of(params, pair)):
        await turn.advisory(("key", params["seed"], pair))
    return [(queue, "read committed") for queue in counted or (None,)]


async def try_lock_keys(turn: Turn, params: Params) -> list[Row]:
    """Answer ``try_lock_keys``."""
    rows: list[Row] = []
    for queue, key in _pairs(params):
        settings = turn.get(QUEUE, queue)
        got = turn.try_advisory(("key", params["seed"], (queue, key)))
        rows.append((queue, key, got, settings is not None and settings.sequenced))
    return rows


async def next_sequences(turn: Turn, params: Params) -> list[Row]:
    """Answer ``next_sequences``."""
    rows: list[Row] = []
    for pair, many in zip(_pairs(params), params["counts"], strict=True):
        row = await turn.inserted_or_locked(KEY, KeyRow(*pair, 0))
        after = turn.put(KEY, row._replace(last_sequence=row.last_sequence + many))
        rows.append((*pair, after.last_sequence))
    return rows


async def promote(turn: Turn, params: Params) -> list[Row]:
    """Answer ``promote``."""

    def is_parked(row: OutboxRow) -> bool:
        return row.status == "blocked"

    first = []
    for queue, key in set(_pairs(params)):
        first += of_key(open_rows(turn, queue), key)[:1]
    parked = sorted(filter(is_parked, first), key=lambda row: row.id)
    changed = await turn.update(
        OUTBOX,
        parked,
        is_parked,
        lambda row: row._replace(status="pending", available_at=min(row.created_at, turn.now)),
    )
    return [(row.id,) for row in changed]


async def keys_stranded(turn: Turn, params: Params) -> list[Row]:
    """Answer ``keys_stranded``."""
    found: list[Row] = []
    for seen, ((queue, key), head) in enumerate(_walk(turn, params), 1):
        if head.status == "blocked" or seen == params["window"]:
            found.append((queue, key, head.status == "blocked", seen == params["window"]))
    return found


def _walk(turn: Turn, params: Params) -> list[tuple[tuple[str, str], OutboxRow]]:
    """Return the next keys and their first open rows; with a queue, up to the first key behind that queue."""
    walk = []
    for key, head in sorted(heads(turn.rows(OUTBOX)).items()):
        if key <= (params["after_queue"], params["after_key"]):
            continue
        walk.append((key, head))
        if len(walk) >= params["window"] or params["queue"] not in (None, key[0]):
            break
    return walk


async def keys_freed(turn: Turn, params: Params) -> list[Row]:
    """Answer ``keys_freed``."""
    changed: dict[tuple[str, str], int] = {}
    for row in with_ids(turn, params["ids"]):
        if row.ordering_key is not None:
            changed.setdefault((row.queue, row.ordering_key), row.id)
    waiting: dict[tuple[str, str], list[OutboxRow]] = defaultdict(list)
    for row in turn.rows(OUTBOX):
        if row.is_open and row.ordering_key is not None:
            waiting[row.queue, row.ordering_key].append(row)
    rows: list[Row] = []
    for key, row_id in changed.items():
        many = sum(row.id > row_id for row in waiting[key][: params["cap"] + 2])
        if many and waiting[key][0].id >= row_id and waiting[key][0].status != "dead":
            rows.append((*key, min(many, params["cap"] + 1)))
    return rows
