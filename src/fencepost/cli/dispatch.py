"""``dispatch``: run the dispatcher until it is told to stop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.invocation import Invocation
from fencepost.cli.logs import log_to_stderr
from fencepost.cli.options import STORE, takes_settings
from fencepost.cli.serving import serve, shown
from fencepost.cli.settings import SETTINGS
from fencepost.cli.settings.addresses import PYTHON_TARGET, check_target
from fencepost.cli.targets import targets_of
from fencepost.config import DISPATCHER_NAMES, Settings
from fencepost.store.catalog import Names

if TYPE_CHECKING:
    from fencepost.runtime.dispatcher import Dispatcher

_FLAGS = (
    *(*STORE, "destinations", "routes", "log_level", "log_json"),
    *(s.name for s in SETTINGS if s.name in DISPATCHER_NAMES),
)


_TOLD = frozenset({"destinations", "routes", "owner", "queues", "batch", "concurrency", "lease"})
"""Settings that the log says at the start."""


def _routes_from_shorthands(flags: dict[str, Any], given: dict[str, Any]) -> None:
    """Turn ``--to`` and ``--publisher`` into a route for everything, behind what ``--route`` says."""
    to, publisher = given.pop("to"), given.pop("publisher")
    if publisher is not None and not re.fullmatch(r"[\w.]+:[\w.]+", publisher):
        raise click.UsageError(
            f"--publisher: expected MODULE:OBJECT, such as shop.events:publish, not {publisher!r}"
        )
    if to is not None and publisher is not None:
        raise click.UsageError("--to and --publisher exclude each other: both take every event type")
    target = to if publisher is None else f"{PYTHON_TARGET}{publisher}"
    if target is None:
        return
    try:
        check_target("*", target)
    except ValueError as error:
        raise click.UsageError(f"--to: {error}") from None
    flags["routes"] = (*flags["routes"], f"*={target}")


@click.command()
@click.option("--to", metavar="URL", help="Send every event type there, such as stdout: or https://….")
@click.option("--publisher", metavar="MODULE:OBJECT", help="Send every event type to an object of your own.")
@takes_settings(*_FLAGS, complete=_routes_from_shorthands)
@click.option("--once", is_flag=True, help="Handle one batch, then stop.")
def dispatch(invocation: Invocation, settings: Settings, once: bool) -> int:
    """Publish what was committed.

    Runs until SIGTERM or SIGINT, then finishes what is in flight. Exits with 0 when all of it was finished,
    with 1 when the grace time ended first; a second signal ends that at once. Logs go to standard error.
    """
    log_to_stderr(settings, invocation.redact)
    targets = targets_of(settings)

    def make(url: str) -> Dispatcher:
        from fencepost.runtime.dispatcher import Dispatcher

        return Dispatcher(
            url,
            targets.routes,
            settings.dispatcher,
            destinations=targets.destinations,
            schema_name=settings.schema,
            table=settings.table,
        )

    return serve(
        invocation,
        settings,
        role="dispatch",
        grace=settings.dispatcher.grace.total_seconds(),
        names=Names(settings.schema, settings.table),
        make=make,
        once=_one_batch if once else None,
        told={"message": "dispatching"} | shown(settings, _TOLD),
    )


async def _one_batch(dispatcher: Dispatcher) -> bool:
    from fencepost.runtime.lifecycle import UnexpectedFailure

    await dispatcher.dispatch_once()
    if dispatcher.counters.unexpected and dispatcher.settings.on_unexpected == "stop":
        raise UnexpectedFailure("a publisher raised an unclassified exception, see the log")
    return True
