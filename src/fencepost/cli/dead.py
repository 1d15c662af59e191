"""``dead``: look at dead messages, and decide what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from fencepost.cli import exits
from fencepost.cli.actor import actor_option, os_user
from fencepost.cli.attempts import attempt_as_json, show_attempts
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.messages import HEADERS, MAX_ID, details, identity_of, row, summary
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output, counted
from fencepost.cli.progress import progress
from fencepost.cli.rows import ROW_ID, show_full
from fencepost.client.outbox import Outbox
from fencepost.config import Settings
from fencepost.core.ledger import Attempt, Kind
from fencepost.core.operation import run
from fencepost.core.records import DeadMessage, Freed
from fencepost.core.states import DEAD_OUTCOMES
from fencepost.drivers import driver_for
from fencepost.store import keys, ledger

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

PAGE = 500
"""Messages per transaction when all of them are changed."""

_OUTCOMES = click.Choice(sorted(str(outcome) for outcome in DEAD_OUTCOMES))

queue_option = click.option("--queue", metavar="NAME", help="Only of this queue.")
outcome_option = click.option("--outcome", type=_OUTCOMES, help="Only dead for this reason.")


@click.group()
def dead() -> None:
    """List, show, retry or skip dead messages."""


@dead.command("list")
@takes_settings(*STORE)
@queue_option
@outcome_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", type=click.IntRange(0, MAX_ID), default=0, metavar="ID", help="Begin behind this id.")
@json_option
def list_command(
    invocation: Invocation,
    settings: Settings,
    queue: str | None,
    outcome: str | None,
    limit: int,
    after: int,
    as_json: bool,
) -> int:
    """List dead messages in id order."""
    with invocation.connected(settings, "dead") as connection:
        # One more than asked for, to know whether there are more.
        found = outbox_of(settings).list_dead(connection, queue, outcome, after, limit + 1)
    shown, out = found[:limit], invocation.out
    if as_json:
        out.json([summary(each) for each in shown])
    elif shown:
        out.table(HEADERS, [row(each, ages=out.is_terminal) for each in shown], cut=True)
    else:
        out.note("no dead messages" + _filter_text(queue, outcome))
    if len(found) > limit:
        out.note(f"there are more: --after {shown[-1].message.id}")
    return exits.OK


@dead.command()
@takes_settings(*STORE)
@click.argument("identity", metavar="ID")
@json_option
def show(invocation: Invocation, settings: Settings, identity: str, as_json: bool) -> int:
    """Show one message in full.

    ID is its id (a number) or its message id (a UUID). Messages in other states are shown as well. The message id
    of an event that goes to several destinations shows the message for each of them, one below the other. The
    attempts at a message follow it, where its queue keeps a ledger.
    """
    found, attempts = _found(invocation, settings, identity_of(identity))
    out = invocation.out
    if not found:
        out.note(f"there is no message {identity}")
        return exits.NEGATIVE
    if as_json:
        first, *others = (
            details(each) | {"attempts_made": [attempt_as_json(attempt) for attempt in made]}
            for each, made in zip(found, attempts, strict=True)
        )
        out.json(first | {"others": others})
        return exits.OK
    for number, (each, made) in enumerate(zip(found, attempts, strict=True)):
        if number:
            click.echo()
        show_full(out, details(each))
        if made:
            click.echo()
            show_attempts(out, made)
    return exits.OK


def _found(
    invocation: Invocation, settings: Settings, identity: int | UUID
) -> tuple[list[DeadMessage], list[list[Attempt]]]:
    """Return the messages, and what the ledger has of each."""
    outbox = outbox_of(settings)
    with invocation.connected(settings, "dead") as connection:
        if isinstance(identity, UUID):
            found = outbox.show_all(connection, identity)
        else:
            one = outbox.show(connection, identity)
            found = [] if one is None else [one]
        ids = [each.message.id for each in found]
        attempts = run(ledger.attempts(outbox.catalog, Kind.MESSAGE, ids), driver_for(connection).execute)
    return found, [[each for each in attempts if each.row_id == row_id] for row_id in ids]


def _change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.argument("ids", nargs=-1, type=ROW_ID, metavar="[ID]..."),
            click.option(
                "--all", "everything", is_flag=True, help="Every dead message, or those that the filters leave."
            ),
            queue_option,
            outcome_option,
            click.option("--reason", metavar="TEXT", help="Why; kept in the audit table."),
            actor_option,
            click.option("--yes", is_flag=True, help="Do not ask before changing all of them."),
            json_option,
        ]
    ):
        command = option(command)
    return command


@dead.command()
@takes_settings(*STORE)
@_change_options
def retry(invocation: Invocation, settings: Settings, **given: Any) -> int:
    """Put dead messages back to pending.

    They have all their attempts again. What each was before is kept in the audit table.
    """
    return _change(invocation, settings, "retry", **given)


@dead.command()
@takes_settings(*STORE)
@_change_options
def skip(invocation: Invocation, settings: Settings, **given: Any) -> int:
    """Close dead messages for good.

    They count as done, with the outcome skipped, and are purged like delivered ones.
    """
    return _change(invocation, settings, "skip", **given)


# --- changing ---------------------------------------------------------------------------------------------


def _change(
    invocation: Invocation,
    settings: Settings,
    verb: str,
    *,
    ids: Sequence[int],
    everything: bool,
    queue: str | None,
    outcome: str | None,
    reason: str | None,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    if everything == bool(ids):
        raise click.UsageError(f"say which messages to {verb}: their ids, or --all")
    if ids and (queue or outcome):
        raise click.UsageError("--queue and --outcome go with --all, not with ids")
    if everything and not yes and not sys.stdin.isatty():
        raise click.UsageError("standard input is no terminal to ask on: pass --yes")
    outbox, out = outbox_of(settings), invocation.out
    change = outbox.retry_dead if verb == "retry" else outbox.skip_dead
    changed: list[int] = []
    freed: list[Freed] = []
    with invocation.connected(settings, "dead") as connection:
        count = _count(connection, outbox, queue, outcome) if everything else len(ids)
        connection.rollback()  # nobody knows how long the answer takes: no transaction may stay open
        if everything and count and not yes:
            messages = counted(count, "dead message")
            if not click.confirm(f"{verb.capitalize()} {messages}{_filter_text(queue, outcome)}?", err=True):
                out.note("nothing was changed")
                return exits.NEGATIVE
        with progress(out, f"{verb} dead messages", count, as_json) as advance:
            for page in _pages(connection, outbox, ids, queue, outcome):
                step = change(connection, page, actor or os_user(), reason)
                freed.append(run(keys.freed(outbox.catalog, step), driver_for(connection).execute))
                connection.commit()
                changed += step
                advance(len(page))
    unchanged = sorted(set(ids) - set(changed))
    _report(out, verb, changed, unchanged, _sum(freed), as_json)
    return exits.NEGATIVE if unchanged else exits.OK


def _pages(
    connection: Connection, outbox: Outbox, ids: Sequence[int], queue: str | None, outcome: str | None
) -> Iterator[Sequence[int]]:
    """Yield the ids to change in steps. Going by id, each message is met once, even if it dies again meanwhile."""
    if ids:
        yield from (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
        return
    yield from _all_pages(connection, outbox, queue, outcome)


def _all_pages(
    connection: Connection, outbox: Outbox, queue: str | None, outcome: str | None
) -> Iterator[Sequence[int]]:
    after = 0
    while page := outbox.list_dead(connection, queue, outcome, after, PAGE):
        after = page[-1].message.id
        yield [each.message.id for each in page]


def _count(connection: Connection, outbox: Outbox, queue: str | None, outcome: str | None) -> int:
    """Count the dead messages that the filters leave."""
    if queue and outcome:  # which the statistics do not cross
        return sum(len(page) for page in _all_pages(connection, outbox, queue, outcome))
    found = outbox.stats(connection)
    if queue:
        return sum(each.dead for each in found.queues if each.queue == queue)
    return sum(count for name, count in found.dead_by_outcome.items() if outcome in (None, name))


def _sum(steps: Sequence[Freed]) -> Freed:
    return Freed(
        keys=sum(each.keys for each in steps),
        messages=sum(each.messages for each in steps),
        is_capped=any(each.is_capped for each in steps),
    )


def _report(out: Output, verb: str, changed: list[int], unchanged: list[int], freed: Freed, as_json: bool) -> None:
    if as_json:
        out.json({"changed": changed, "unchanged": unchanged, "freed": asdict(freed)})
        return
    state = "pending again" if verb == "retry" else "skipped"
    out.line(f"{counted(len(changed), 'message')} {'is' if len(changed) == 1 else 'are'} {state}")
    if freed.keys:
        waiting = f"{'more than ' if freed.is_capped else ''}{counted(freed.messages, 'message')}"
        out.line(f"that frees {counted(freed.keys, 'ordering key')}, in which {waiting} waited")
    for row_id in unchanged:
        out.note(f"message {row_id} is not dead, or not there: nothing was changed")


def _filter_text(queue: str | None, outcome: str | None) -> str:
    return (f" of queue {queue}" if queue else "") + (f" with outcome {outcome}" if outcome else "")
