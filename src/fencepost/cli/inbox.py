"""``inbox``: what consumers have taken in, and the end of what cannot come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, as_duration, json_option, takes_settings
from fencepost.cli.output import Cell
from fencepost.cli.settings.durations import format_duration
from fencepost.cli.steps import Steps, progress
from fencepost.config import DispatcherSettings, Settings
from fencepost.core.error_text import storable
from fencepost.core.operation import Rows, Statement, run
from fencepost.core.queue import QueueSettings
from fencepost.core.text import checked_name
from fencepost.drivers import driver_for
from fencepost.errors import ConfigError
from fencepost.store import inbox as store
from fencepost.store.catalog import Catalog
from fencepost.store.forget import Forgotten

HEADERS = ("consumer", "entries", "oldest", "newest", "keys")
_OF_ITS_OWN = ("max_attempts", "publish_timeout", "lease", "backoff_cap", "breaker_cap")
"""What a horizon is made of and a queue may have of its own."""


@click.group()
def inbox() -> None:
    """List what consumers have taken in, or forget what is old."""


@inbox.command("list")
@takes_settings(*STORE)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="CONSUMER", default="", help="Begin behind this consumer.")
@json_option
def list_command(invocation: Invocation, settings: Settings, limit: int, after: str, as_json: bool) -> int:
    """List consumers, and what each has taken in.

    That is how many messages, how old these are, and how many keys it follows. Of one consumer at most 100000 are
    counted.
    """
    if after != storable(after):
        raise click.UsageError(f"{after!r} is no name that a consumer can have")
    with invocation.connected(settings, "inbox") as connection:
        # One more than asked for, to know whether there are more.
        operation = store.consumers(outbox_of(settings).catalog, after=after, limit=limit + 1)
        found = run(operation, driver_for(connection).execute)
    shown, out = found[:limit], invocation.out
    more = shown[-1].name if len(found) > limit else None
    if as_json:
        out.json({"consumers": [_as_json(each) for each in shown], "after": more})
        return exits.OK
    if shown:
        out.table(HEADERS, [_row(each) for each in shown])
    else:
        out.note("no consumer has taken anything in")
    if more is not None:
        out.note(f"there are more: --after {more}")
    return exits.OK


@inbox.command()
@takes_settings(*STORE)
@click.argument("consumer")
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=as_duration,
    help="Time since they were taken in, such as 14d.",
)
@click.option(
    "--waiting",
    metavar="DURATION",
    default="1d",
    show_default=True,
    callback=as_duration,
    help="How long a due message may wait at its sender: in a backlog, a paused queue, or dead until a retry.",
)
@click.option(
    "--broker",
    metavar="DURATION",
    default="0s",
    show_default=True,
    callback=as_duration,
    help="How long the broker repeats by itself, or can be read again.",
)
@click.option(
    "--step", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Entries per transaction."
)
@json_option
def purge(
    invocation: Invocation,
    settings: Settings,
    consumer: str,
    older_than: timedelta,
    waiting: timedelta,
    broker: timedelta,
    step: int,
    as_json: bool,
) -> int:
    """Forget what a consumer took in long ago.

    In small steps, beside full traffic. Nothing is forgotten that can come again: the longest time in which a
    message is repeated follows from the configured settings of the dispatcher, those of the queues in this store,
    --waiting and --broker. The numbers of keys stay.
    """
    checked_name("consumer", consumer)
    outbox = outbox_of(settings)
    with invocation.connected(settings, "inbox purge") as connection:
        sender = longest(settings.dispatcher, outbox.queues(connection))
        connection.commit()
        horizon = sender.redelivery_horizon(waiting=waiting, broker=broker)
        if older_than < horizon:
            raise ConfigError(
                f"--older-than {format_duration(older_than)} is too short: a message can come again for "
                f"{format_duration(horizon)}, and its effect would be made twice. That is what the dispatcher's "
                "settings, --waiting and --broker come to (docs/inbox.md): keep entries at least that long"
            )
        walk = _Walk(outbox.catalog, consumer, older_than)
        with progress(invocation.out, "forgetting entries", is_silent=as_json) as advance:
            for count in walk.steps(Steps(connection, invocation.out, step)):
                advance(count)
    if as_json:
        invocation.out.json({"consumer": consumer, "forgotten": walk.forgotten, "horizon_seconds": horizon})
    else:
        entries = "entry" if walk.forgotten == 1 else "entries"
        invocation.out.line(f"forgot {walk.forgotten} {entries} of {consumer}")
    return exits.OK


def longest(settings: DispatcherSettings, queues: Sequence[QueueSettings]) -> DispatcherSettings:
    """Return settings with which every attempt takes as long as it does in the slowest of the queues."""
    everybody: list[Any] = [settings, *queues]
    own = {name: [getattr(each, name) for each in everybody] for name in _OF_ITS_OWN}
    return replace(
        settings, **{name: max(value for value in own[name] if value is not None) for name in _OF_ITS_OWN}
    )


@dataclass(slots=True)
class _Walk:
    """One purge from the oldest entry of a consumer on."""

    catalog: Catalog
    consumer: str
    older_than: timedelta
    forgotten: int = 0
    _after: int | None = 0

    def steps(self, steps: Steps) -> Iterator[int]:
        """Forget step by step; yield how many each forgot."""
        while self._after is not None:
            step = steps.make(self._step)
            if step is not None:
                self._after = step.after
                self.forgotten += step.count
                yield step.count

    def _step(self, execute: Callable[[Statement], Rows], limit: int) -> Forgotten:
        assert self._after is not None  # noqa: S101 - for the type checker
        operation = store.purge(
            self.catalog, self.consumer, older_than=self.older_than, limit=limit, after=self._after
        )
        return run(operation, execute)


def _row(consumer: store.Consumer) -> list[Cell]:
    return [
        consumer.name,
        _counted(consumer.entries),
        consumer.oldest,
        consumer.newest,
        _counted(consumer.keys),
    ]


def _counted(count: int) -> str | int:
    return f"more than {store.COUNTED}" if count > store.COUNTED else count


def _as_json(consumer: store.Consumer) -> dict[str, Any]:
    return {
        "consumer": consumer.name,
        "entries": min(consumer.entries, store.COUNTED),
        "entries_are_capped": consumer.entries > store.COUNTED,
        "oldest_age_seconds": consumer.oldest,
        "newest_age_seconds": consumer.newest,
        "keys": min(consumer.keys, store.COUNTED),
        "keys_are_capped": consumer.keys > store.COUNTED,
    }
