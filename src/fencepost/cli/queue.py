"""``pause``, ``resume`` and ``queue``: what all workers of a queue agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import click

from fencepost.cli import exits
from fencepost.cli.actor import actor_option, os_user
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Cell
from fencepost.cli.settings.durations import format_duration, parse_duration
from fencepost.cli.standstill import breaker_as_json, open_breaker, standstills
from fencepost.client.outbox import Outbox
from fencepost.config import Settings
from fencepost.core.operation import run
from fencepost.core.queue import CHANGEABLE, QueueSettings, checked_changes, checked_name
from fencepost.drivers import driver_for
from fencepost.store import queues

HEADERS = ("queue", "paused", *CHANGEABLE, "changed_at", "changed_by")
_DURATIONS = ("lease", "publish_timeout", "backoff_base", "backoff_cap", "breaker_cap")

name_argument = click.argument("name", metavar="QUEUE")


@click.command()
@takes_settings(*STORE)
@name_argument
@click.option("--reason", metavar="TEXT", help="Why; shown for as long as it is paused.")
@actor_option
@json_option
def pause(
    invocation: Invocation, settings: Settings, name: str, reason: str | None, actor: str | None, as_json: bool
) -> int:
    """Stop claims of a queue, by every worker.

    What is being published goes on to its end. Messages can still be enqueued; they wait.
    """
    outbox, out = outbox_of(settings), invocation.out
    checked_name(name)
    with invocation.connected(settings, "queue") as connection:
        changed = outbox.pause_queue(connection, name, actor or os_user(), reason)
        connection.commit()
        is_empty = _is_empty(connection, outbox, name)
    if as_json:
        out.json({"queue": name, "paused": True, "changed": changed})
    else:
        out.line(f"queue {name} is paused" if changed else f"queue {name} was paused already")
    if reason is not None and not changed:
        out.note("the reason was not kept: only a pause that begins has one")
    if is_empty:
        out.note(f"queue {name} holds no open message: is that its name?")
    return exits.OK


@click.command()
@takes_settings(*STORE)
@name_argument
@actor_option
@json_option
def resume(invocation: Invocation, settings: Settings, name: str, actor: str | None, as_json: bool) -> int:
    """Let a paused queue go on."""
    checked_name(name)
    with invocation.connected(settings, "queue") as connection:
        changed = outbox_of(settings).resume_queue(connection, name, actor or os_user())
        connection.commit()
    if as_json:
        invocation.out.json({"queue": name, "paused": False, "changed": changed})
    else:
        invocation.out.line(f"queue {name} goes on" if changed else f"queue {name} was not paused already")
    return exits.OK


def _is_empty(connection: Any, outbox: Outbox, name: str) -> bool:
    return not run(queues.has_open(outbox.catalog, name), driver_for(connection).execute)


@click.group()
def queue() -> None:
    """List, show or change settings of queues.

    They are queues of messages: jobs have queues of their own, which these settings do not touch.
    """


@queue.command("list")
@takes_settings(*STORE)
@json_option
def list_command(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    """List the queues that have settings of their own.

    All others have those of each worker, which a "-" stands for here. Open breakers and reasons of pauses are told
    on standard error as well.
    """
    with invocation.connected(settings, "queue") as connection:
        found = outbox_of(settings).queues(connection)
    out = invocation.out
    if as_json:
        out.json([_as_json(each) for each in found])
    elif found:
        out.table((*HEADERS, "breaker"), [[*_shown(each).values(), _breaker(each)] for each in found])
        for line in standstills(found):
            out.note(line)
    else:
        out.note("no queue has settings of its own")
    return exits.OK


@queue.command()
@takes_settings(*STORE)
@name_argument
@json_option
def show(invocation: Invocation, settings: Settings, name: str, as_json: bool) -> int:
    """Show the settings of a queue, and its breaker."""
    checked_name(name)
    with invocation.connected(settings, "queue") as connection:
        found = outbox_of(settings).queues(connection)
    _print(invocation, next((each for each in found if each.queue == name), QueueSettings(queue=name)), as_json)
    return exits.OK


def _duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("--weight", type=click.IntRange(1, 1_000), help="Its share of a busy worker."),
            click.option("--concurrency", type=click.IntRange(1, 10_000), help="Publishes in flight, per worker."),
            _duration_option("--lease", "How long a claim holds without a heartbeat."),
            _duration_option("--publish-timeout", "The longest a publish may take; below the lease."),
            click.option("--max-attempts", type=click.IntRange(1, 1_000_000), help="Starts before it is dead."),
            _duration_option("--backoff-base", "The first window of the random delay between attempts."),
            _duration_option("--backoff-cap", "The largest window of that delay."),
            click.option(
                "--sequenced/--no-sequenced", default=None, help="Number the messages of each key without a gap."
            ),
            click.option("--ledger/--no-ledger", default=None, help="Write down every attempt."),
            click.option(
                "--rate",
                type=click.FloatRange(0.001, 1_000_000),
                metavar="NUMBER",
                help="Messages a second that all workers together claim at most.",
            ),
            click.option(
                "--breaker-failures",
                type=click.IntRange(0, 1_000_000),
                help="Failures in a row that open its breaker; 0 for never.",
            ),
            _duration_option("--breaker-cap", "The longest time between two probes of its open breaker."),
            click.option(
                "--unset",
                multiple=True,
                type=click.Choice([name.replace("_", "-") for name in CHANGEABLE]),
                help="Go back to each worker's own setting; may be given several times.",
            ),
        ]
    ):
        command = option(command)
    return command


def _duration_option(flag: str, text: str) -> Callable[..., Any]:
    return click.option(flag, metavar="DURATION", callback=_duration, help=text)


@queue.command("set")
@takes_settings(*STORE)
@name_argument
@_setting_options
@actor_option
@json_option
def set_command(
    invocation: Invocation,
    settings: Settings,
    name: str,
    unset: Sequence[str],
    actor: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Change settings of a queue, for every worker.

    What is not mentioned stays. Workers take the change over within seconds.
    """
    changes: Any = checked_changes(_changes(given, [each.replace("-", "_") for each in unset]))
    checked_name(name)
    with invocation.connected(settings, "queue") as connection:
        changed = outbox_of(settings).set_queue(connection, name, actor or os_user(), **changes)
        connection.commit()
    _print(invocation, changed, as_json)
    for setting, text in changed.warnings():
        invocation.out.note(f"warning: {setting}: {text}")
    return exits.OK


@queue.command("close-breaker")
@takes_settings(*STORE)
@name_argument
@json_option
def close_breaker_command(invocation: Invocation, settings: Settings, name: str, as_json: bool) -> int:
    """Close the breaker of a queue without waiting for a probe.

    If its destination still fails, the workers open it again.
    """
    outbox, out = outbox_of(settings), invocation.out
    checked_name(name)
    with invocation.connected(settings, "queue") as connection:
        changed = outbox.close_breaker(connection, name)
        connection.commit()
        is_empty = not changed and _is_empty(connection, outbox, name)
    if as_json:
        out.json({"queue": name, "breaker": None, "changed": changed})
    else:
        state = "is closed" if changed else "was not open"
        out.line(f"the breaker of queue {name} {state}")
    if is_empty:
        out.note(f"queue {name} holds no open message: is that its name?")
    return exits.OK


def _changes(given: dict[str, Any], unset: Sequence[str]) -> dict[str, Any]:
    changes = {setting: value for setting, value in given.items() if value is not None}
    both = sorted(set(changes) & set(unset))
    if both:
        flag = both[0].replace("_", "-")
        raise click.UsageError(f"--{flag} and --unset {flag} exclude each other")
    if not changes and not unset:
        raise click.UsageError("say what to change, such as --weight 3, or --unset weight")
    return changes | dict.fromkeys(unset)


# --- showing ----------------------------------------------------------------------------------------------


def _print(invocation: Invocation, found: QueueSettings, as_json: bool) -> None:
    out = invocation.out
    if as_json:
        out.json(_as_json(found))
        return
    width = max(map(len, HEADERS))
    breaker = "closed" if found.breaker is None else open_breaker(found.breaker)
    for name, value in (_shown(found) | {"pause_reason": found.pause_reason, "breaker": breaker}).items():
        out.line(f"{name:{width}}  {out.cell(value)}")


def _breaker(found: QueueSettings) -> str:
    return "closed" if found.breaker is None else "open"


def _shown(found: QueueSettings) -> dict[str, Cell]:
    """Return the settings for people, in the order of `HEADERS`."""
    cells = {}
    for name in HEADERS:
        value = getattr(found, name)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, timedelta):
            value = format_duration(value)
        cells[name] = value
    return cells


def _as_json(found: QueueSettings) -> dict[str, Any]:
    """Return the settings for programs: durations in seconds, as their names say."""
    own = {f"{name}_seconds" if name in _DURATIONS else name: getattr(found, name) for name in HEADERS}
    return own | {"pause_reason": found.pause_reason, "breaker": breaker_as_json(found.breaker)}
