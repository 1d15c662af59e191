"""``dead``: look at dead messages, and decide what becomes of them."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.messages import HEADERS, details, row, summary, text_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output
from fencepost.config import Settings
from fencepost.core.states import DEAD_OUTCOMES

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

PAGE = 500
"""Messages per transaction when all of them are changed."""

ROW_ID = click.IntRange(0, 2**63 - 1)
"""What the id column can hold."""

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
@click.option("--after", type=ROW_ID, default=0, metavar="ID", help="Begin behind this id.")
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

    ID is its id (a number) or its message id (a UUID). Messages in other states are shown as well.
    """
    wanted = _identity(identity)
    with invocation.connected(settings, "dead") as connection:
        found = outbox_of(settings).show(connection, wanted)
    out = invocation.out
    if found is None:
        out.note(f"there is no message {identity}")
        return exits.NEGATIVE
    full = details(found)
    if as_json:
        out.json(full)
        return exits.OK
    width = max(map(len, full))
    for name, value in full.items():
        shown = out.text(str(text_of(value))).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{name:{width}}  {shown}")
    return exits.OK


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
            click.option(
                "--actor", metavar="NAME", help="Who; kept in the audit table (default: your user name)."
            ),
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
    if (
        everything
        and not yes
        and not _agreed(f"{verb.capitalize()} all dead messages{_filter_text(queue, outcome)}?")
    ):
        invocation.out.note("nothing was changed")
        return exits.NEGATIVE
    outbox = outbox_of(settings)
    change = outbox.retry_dead if verb == "retry" else outbox.skip_dead
    changed: list[int] = []
    with invocation.connected(settings, "dead") as connection:
        for page in _pages(connection, settings, ids, queue, outcome):
            changed += change(connection, page, actor or _os_user(), reason)
            connection.commit()
    unchanged = sorted(set(ids) - set(changed))
    _report(invocation.out, verb, changed, unchanged, as_json)
    return exits.NEGATIVE if unchanged else exits.OK


def _pages(
    connection: Connection, settings: Settings, ids: Sequence[int], queue: str | None, outcome: str | None
) -> Iterator[Sequence[int]]:
    """Yield the ids to change in steps. Going by id, each message is met once, even if it dies again meanwhile."""
    if ids:
        yield from (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
        return
    after = 0
    while page := outbox_of(settings).list_dead(connection, queue, outcome, after, PAGE):
        after = page[-1].message.id
        yield [each.message.id for each in page]


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is no terminal to ask on: pass --yes")
    return click.confirm(question, err=True)


def _report(out: Output, verb: str, changed: list[int], unchanged: list[int], as_json: bool) -> None:
    if as_json:
        out.json({"changed": changed, "unchanged": unchanged})
        return
    state = "pending again" if verb == "retry" else "skipped"
    out.line(f"{len(changed)} {'message is' if len(changed) == 1 else 'messages are'} {state}")
    for row_id in unchanged:
        out.note(f"message {row_id} is not dead, or not there: nothing was changed")


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _filter_text(queue: str | None, outcome: str | None) -> str:
    return (f" of queue {queue}" if queue else "") + (f" with outcome {outcome}" if outcome else "")


def _identity(text: str) -> int | UUID:
    if text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is neither a message's id (a number) nor its message id (a UUID)"
        ) from None
