"""``dispatch``: run the dispatcher until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli import exits
from fencepost.cli.departure import Departure
from fencepost.cli.failures import failure_of
from fencepost.cli.invocation import Invocation, connect, outbox_of
from fencepost.cli.logs import log_to_stderr
from fencepost.cli.options import STORE, takes_settings
from fencepost.cli.settings import SETTINGS
from fencepost.cli.settings.addresses import PYTHON_TARGET, check_target, shown_store
from fencepost.cli.targets import targets_of
from fencepost.config import DISPATCHER_NAMES, Settings
from fencepost.errors import SchemaError

if TYPE_CHECKING:
    from fencepost.runtime.dispatcher import Dispatcher

log = logging.getLogger("fencepost.cli")

_FLAGS = (
    *(*STORE, "destinations", "routes", "log_level", "log_json"),
    *(s.name for s in SETTINGS if s.name in DISPATCHER_NAMES),
)


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
    departure = Departure(settings.dispatcher.grace.total_seconds())
    departure.install()
    # Publishers bring threads: from here on the process never ends by waiting for them.
    invocation.leave = departure.leave
    try:
        with invocation.store_url(settings) as url:
            _refuse_missing_tables(url, settings)
            from fencepost.runtime.dispatcher import Dispatcher

            dispatcher = Dispatcher(
                url,
                targets.routes,
                settings.dispatcher,
                destinations=targets.destinations,
                schema_name=settings.schema,
                table=settings.table,
            )
            drained = _run(dispatcher, settings, once, departure)
    except Exception:
        if not departure.has_loop:
            invocation.leave = None
            departure.withdraw()
        raise
    return exits.OK if drained else exits.NEGATIVE


def _refuse_missing_tables(url: str, settings: Settings) -> None:
    """Find out now what is wrong with the database: once it runs, the dispatcher waits for it to come back."""
    with connect(url, "dispatch") as connection:
        problems = outbox_of(settings).check_schema(connection)
    if problems:
        raise SchemaError("; ".join(problems))


def _run(dispatcher: Dispatcher, settings: Settings, once: bool, departure: Departure) -> bool:
    """Run an event loop as ``asyncio.run`` does, without its patience at the end.

    It waits for every task and thread; one publish that ignores its cancellation would hold up the exit.
    """
    from fencepost.runtime.loop import new_event_loop

    loop = new_event_loop()
    try:
        task = loop.create_task(_serve(dispatcher, settings, once, departure))
        # Until it runs, nothing is in flight: the whole of it may be cancelled.
        departure.setting_up(loop, task.cancel)
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        log.info("stopped", extra={"fields": {"drained": True} | dispatcher.counters.as_dict()})
        return True
    finally:
        loop.close()


async def _serve(dispatcher: Dispatcher, settings: Settings, once: bool, departure: Departure) -> bool:
    drained, code = False, exits.NEGATIVE
    async with dispatcher:
        log.info("dispatching", extra={"fields": _described(settings)})
        departure.running(dispatcher.stop)
        try:
            drained = await (_one_batch(dispatcher) if once else dispatcher.run(handle_signals=False))
            code = exits.OK if drained else exits.NEGATIVE
        except Exception as error:
            code = failure_of(error, settings).code
            raise
        finally:
            log.info("stopped", extra={"fields": {"drained": drained} | dispatcher.counters.as_dict()})
            departure.closing(code)
    return drained


async def _one_batch(dispatcher: Dispatcher) -> bool:
    from fencepost.runtime.lifecycle import UnexpectedFailure

    await dispatcher.dispatch_once()
    if dispatcher.counters.unexpected and dispatcher.settings.on_unexpected == "stop":
        raise UnexpectedFailure("a publisher raised an unclassified exception, see the log")
    return True


def _described(settings: Settings) -> dict[str, str]:
    told = {"destinations", "routes", "owner", "queues", "batch", "concurrency", "lease"}
    return {"store": shown_store(settings.store)} | {s.name: s.shown(settings) for s in SETTINGS if s.name in told}
