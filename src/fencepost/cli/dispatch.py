"""``dispatch``: run the dispatcher until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, connect, outbox_of
from fencepost.cli.logs import log_to_stderr
from fencepost.cli.options import STORE, takes_settings
from fencepost.cli.settings import SETTINGS
from fencepost.cli.settings.addresses import PYTHON_TARGET, check_target, shown_store
from fencepost.cli.targets import routes_of
from fencepost.config import DISPATCHER_NAMES, Settings
from fencepost.errors import SchemaError

if TYPE_CHECKING:
    from fencepost.runtime.dispatcher import Dispatcher

T = TypeVar("T")
log = logging.getLogger("fencepost.cli")

_LAST_FLUSH_SECONDS = 0.1

_FLAGS = (*STORE, "routes", "log_level", "log_json", *(s.name for s in SETTINGS if s.name in DISPATCHER_NAMES))


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
    routes = routes_of(settings)
    _leave_on_sigterm()
    with invocation.store_url(settings) as url:
        _refuse_missing_tables(url, settings)
        from fencepost.runtime.dispatcher import Dispatcher

        dispatcher = Dispatcher(
            url, routes, settings.dispatcher, schema_name=settings.schema, table=settings.table
        )
        drained = _run_loop(_serve(dispatcher, settings, once))
    if not drained:
        _leave_at_once(exits.NEGATIVE)
    return exits.OK


def _refuse_missing_tables(url: str, settings: Settings) -> None:
    """Find out now what is wrong with the database: once it runs, the dispatcher waits for it to come back."""
    with connect(url, "dispatch") as connection:
        problems = outbox_of(settings).check_schema(connection)
    if problems:
        raise SchemaError("; ".join(problems))


async def _serve(dispatcher: Dispatcher, settings: Settings, once: bool) -> bool:
    fields = {"drained": False}
    async with dispatcher:
        _stop_on_signals(dispatcher)
        log.info("dispatching", extra={"fields": _described(settings)})
        try:
            fields["drained"] = await (_one_batch(dispatcher) if once else dispatcher.run(exit_by_force=True))
        finally:
            log.info("stopped", extra={"fields": fields | dispatcher.counters.as_dict()})
    return fields["drained"]


async def _one_batch(dispatcher: Dispatcher) -> bool:
    from fencepost.runtime.dispatcher import EXIT_RESERVE, UnexpectedFailure
    from fencepost.runtime.shutdown import signals_to

    grace = dispatcher.settings.grace.total_seconds()
    with signals_to(dispatcher.stop, exit_after=grace + EXIT_RESERVE):
        await dispatcher.dispatch_once()
    if dispatcher.counters.unexpected and dispatcher.settings.on_unexpected == "stop":
        raise UnexpectedFailure("a publisher raised an unclassified exception, see the log")
    return True


def _described(settings: Settings) -> dict[str, str]:
    names = [s for s in SETTINGS if s.name in ("routes", "owner", "queues", "batch", "concurrency", "lease")]
    return {"store": shown_store(settings.store)} | {s.name: s.shown(settings) for s in names}


def _leave_on_sigterm() -> None:
    """Until the dispatcher runs there is nothing in flight to finish: a SIGTERM is obeyed at once."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(exits.OK)

    signal.signal(signal.SIGTERM, leave)


def _stop_on_signals(dispatcher: Dispatcher) -> None:
    """Cover the instants before and after the dispatcher handles signals itself."""
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(dispatcher.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _leave_at_once(code: int) -> NoReturn:
    """End the process without waiting for publishes, or their threads, that go on past the grace time."""
    # A flush, too, may wait for a reader that does not read.
    timer = threading.Timer(_LAST_FLUSH_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)


def _run_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run an event loop as ``asyncio.run`` does, without its patience at the end.

    It waits for every task and thread; one publish that ignores its cancellation would hold up the exit.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
