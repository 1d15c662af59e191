"""Run what works under leases (a dispatcher, a worker) as a process: until a signal, drained, and gone in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from fencepost.cli import exits
from fencepost.cli.departure import Departure
from fencepost.cli.failures import failure_of
from fencepost.cli.invocation import Invocation, connect
from fencepost.cli.settings import SETTINGS
from fencepost.cli.settings.addresses import shown_store
from fencepost.client.outbox import Outbox
from fencepost.config import Settings
from fencepost.errors import SchemaError
from fencepost.store.catalog import Names

log = logging.getLogger("fencepost.cli")


class _Counters(Protocol):
    def as_dict(self) -> dict[str, int]: ...


class Served(Protocol):
    """What is run."""

    @property
    def counters(self) -> _Counters: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: Any) -> None: ...

    async def run(self, *, handle_signals: bool = True) -> bool: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Served)


def serve(
    invocation: Invocation,
    settings: Settings,
    *,
    role: str,
    grace: float,
    names: Names,
    make: Callable[[str], S],
    once: Callable[[S], Awaitable[bool]] | None,
    told: Mapping[str, str],
) -> int:
    """Serve until SIGTERM or SIGINT, or once; return the exit code.

    Args:
        role: what the connection that looks at the tables is called.
        grace: seconds that what is in flight may take after a signal.
        names: where the tables are.
        make: makes what is run, of the store's address; nothing is connected yet.
        once: what to do instead of running on.
        told: what the log says at the start; ``message`` is its first word.
    """
    departure = Departure(grace)
    departure.install()
    # User code brings threads: from here on the process never ends by waiting for them.
    invocation.leave = departure.leave
    try:
        with invocation.store_url(settings) as url:
            _refuse_missing_tables(url, role, names)
            drained = _run(make(url), settings, once, departure, dict(told))
    except Exception:
        if not departure.has_loop:
            invocation.leave = None
            departure.withdraw()
        raise
    return exits.OK if drained else exits.NEGATIVE


def _refuse_missing_tables(url: str, role: str, names: Names) -> None:
    """Find out now what is wrong with the database: once it runs, it waits for the database to come back."""
    with connect(url, role) as connection:
        connection.autocommit = True  # it only looks: no transaction stays open where the process is stopped here
        problems = Outbox(schema_name=names.schema, table=names.table).check_schema(connection)
    if problems:
        raise SchemaError("; ".join(problems))


def _run(
    served: S,
    settings: Settings,
    once: Callable[[S], Awaitable[bool]] | None,
    departure: Departure,
    told: dict[str, str],
) -> bool:
    """Run an event loop as ``asyncio.run`` does, without its patience at the end.

    It waits for every task and thread; one that ignores its cancellation would hold up the exit.
    """
    from fencepost.runtime.loop import new_event_loop

    loop = new_event_loop()
    try:
        task = loop.create_task(_serve(served, settings, once, departure, told))
        # Until it runs, nothing is in flight: the whole of it may be cancelled.
        departure.setting_up(loop, task.cancel)
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        log.info("stopped", extra={"fields": {"drained": True} | served.counters.as_dict()})
        return True
    finally:
        loop.close()


async def _serve(
    served: S,
    settings: Settings,
    once: Callable[[S], Awaitable[bool]] | None,
    departure: Departure,
    told: dict[str, str],
) -> bool:
    drained, code = False, exits.NEGATIVE
    departure.hear()
    async with served:
        log.info(told.pop("message"), extra={"fields": told})
        departure.running(served.stop)
        try:
            drained = await (served.run(handle_signals=False) if once is None else once(served))
            code = exits.OK if drained else exits.NEGATIVE
        except Exception as error:
            code = failure_of(error, settings).code
            raise
        finally:
            log.info("stopped", extra={"fields": {"drained": drained} | served.counters.as_dict()})
            departure.closing(code)
    return drained


def shown(settings: Settings, names: Collection[str]) -> dict[str, str]:
    """Return some settings for the log, secrets masked, and the store before them."""
    return {"store": shown_store(settings.store)} | {
        each.name: each.shown(settings) for each in SETTINGS if each.name in names
    }
