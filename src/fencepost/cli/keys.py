"""``keys``: ordering keys that do not move, and why."""

from __future__ import annotations

import shlex
from typing import Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Cell, ago
from fencepost.config import Settings
from fencepost.core.error_text import storable
from fencepost.core.records import BlockedKey, BlockReason

HEADERS = ("queue", "ordering_key", "head", "reason", "followers", "age", "detail", "unblock")
_KEY_SHOWN, _DETAIL_SHOWN = 48, 200

_WAITS_FOR = {
    BlockReason.BACKOFF: "next attempt",
    BlockReason.DEFERRED: "deferred, due",
    BlockReason.DELAYED: "due",
}


@click.command()
@takes_settings(*STORE)
@click.option("--queue", metavar="NAME", help="Only of this queue.")
@click.option("--all", "everything", is_flag=True, help="Also keys whose head is being published.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", nargs=2, metavar="QUEUE KEY", help="Begin behind this key.")
@json_option
def keys(
    invocation: Invocation,
    settings: Settings,
    queue: str | None,
    everything: bool,
    limit: int,
    after: tuple[str, str] | None,
    as_json: bool,
) -> int:
    """List ordering keys that do not move.

    A key is blocked where its first open message, its head, is dead, or where others wait behind a head that is in
    its backoff, deferred or delayed, that may have crashed a worker, or that is stranded: parked with nothing
    before it. Other keys never wait for it.
    """
    with invocation.connected(settings, "keys") as connection:
        # One more than asked for, to know whether there are more.
        page = outbox_of(settings).blocked_keys(connection, _text(queue), limit + 1, _place(after), everything)
    shown, out = page.keys[:limit], invocation.out
    more = page.after
    if len(page.keys) > limit:
        more = shown[-1].queue, shown[-1].ordering_key
    if as_json:
        out.json({"keys": [_as_json(each) for each in shown], "after": more})
        return exits.OK
    if shown:
        out.table(HEADERS, [_row(each, is_short=out.is_terminal) for each in shown], cut=True)
    elif more is None:
        out.note("no blocked keys" + (f" of queue {queue}" if queue else ""))
    if more is not None:
        out.note(f"there are more: --after {shlex.join(more)}")
    return exits.OK


def _place(after: tuple[str, str] | None) -> tuple[str, str] | None:
    return None if after is None else (_text(after[0]) or "", _text(after[1]) or "")


def _text(given: str | None) -> str | None:
    """Refuse what no queue or key can be called, and the database cannot even compare."""
    if given is not None and given != storable(given):
        raise click.UsageError(f"{given!r} is no text that a queue or key can have")
    return given


def _row(key: BlockedKey, *, is_short: bool) -> list[Cell]:
    name = _shortened(key.ordering_key, _KEY_SHOWN) if is_short else key.ordering_key
    followers = f"more than {key.followers}" if key.followers_are_capped else key.followers
    return [key.queue, name, key.head_id, key.reason, followers, key.age, detail(key), unblocked_by(key)]


def detail(key: BlockedKey) -> str:
    """Return what the head waits for, and the first line of its last error."""
    parts = [str(key.outcome)] if key.outcome is not None else []
    if key.due_in is not None:
        parts.append(f"{_WAITS_FOR[key.reason]} in {ago(key.due_in)}")
    if key.lease_left is not None:
        is_over = key.reason is BlockReason.EXPIRED
        when = f"ended {ago(-key.lease_left)} ago" if is_over else f"ends in {ago(key.lease_left)}"
        parts.append(f"lease of {key.lease_owner} {when}")
    if key.last_error and key.reason is not BlockReason.LEASED:
        parts.append(_shortened(key.last_error.splitlines()[0], _DETAIL_SHOWN))
    return ": ".join(parts) or "-"


def unblocked_by(key: BlockedKey) -> str | None:
    """Return the command that lets the key go on; None where it goes on by itself."""
    if key.reason is BlockReason.DEAD:
        return f"fencepost dead retry {key.head_id}"
    return None


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} …"


def _as_json(key: BlockedKey) -> dict[str, Any]:
    return {
        "queue": key.queue,
        "ordering_key": key.ordering_key,
        "head_id": key.head_id,
        "reason": key.reason,
        "outcome": key.outcome,
        "last_error": key.last_error,
        "due_in_seconds": key.due_in,
        "lease_owner": key.lease_owner,
        "lease_left_seconds": key.lease_left,
        "followers": key.followers,
        "followers_are_capped": key.followers_are_capped,
        "age_seconds": key.age,
        "unblock": unblocked_by(key),
    }
