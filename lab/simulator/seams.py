"""What of fencepost is replaced while it is simulated: clock, chance, connections, threads, and nothing else.

Everything here is a name that the shipped modules look up when they use it. What stands in for it finds the
process it belongs to by the event loop that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

from fencepost.runtime import heartbeat, lifecycle, link, pacing, retention, threads, wakeup
from lab.simulator.loop import VirtualLoop, World, set_running_loop

_MODULES = (
    "breakers", "claimer", "dispatcher", "flight", "heartbeat", "held", "job_claimer", "job_flight", "job_run",
    "job_upkeep", "lane_runner", "lifecycle", "link", "pacing", "queues", "reaper", "retention", "schedules",
    "wakeup", "worker",
)  # fmt: skip


def nowhen() -> float:
    """Return the time between worlds, as rubbish is collected."""
    return 0.0


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = nowhen
        """The world's."""


CLOCK = Clock()
CHANCE = random.Random(0)
"""Stands in for the module ``random``."""

UNEXPLAINED: list[str] = []
"""What the shipped code logged that it does not understand."""


_NOT_MEANT = ("not understood", "thread died", "makes no sense")


class _Unexplained(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if any(each in str(record.msg) for each in _NOT_MEANT):
            cause = record.exc_info[1] if record.exc_info else None
            UNEXPLAINED.append(f"{record.msg}: {cause!r}")


def _loop() -> VirtualLoop:
    return cast("VirtualLoop", asyncio.get_running_loop())


async def _connect(url: str, role: str, limits: link.Limits) -> Any:
    process = _loop().process
    return await process.run.server.connect(process, role)


async def _is_shared(connection: Any) -> bool:
    return bool(connection.process.run.plan.pooled)


async def _hang_up(connection: Any) -> None:
    await connection.close()


async def _check_schema(self: Any, link: link.Link) -> None:
    await link.open()


def _beat(self: Any) -> None:
    """Run the heartbeat on the second loop of its process, as its thread would."""
    main = _loop()
    self.simulated = main.beside.create_task(self._beat_until_cancelled())


async def _stop_beating(self: Any, timeout: float) -> None:
    self._stopping.set()
    task = self.simulated
    task.get_loop().call_soon_threadsafe(task.cancel)
    ended = asyncio.Event()
    main = _loop()
    task.add_done_callback(lambda _: main.call_soon_threadsafe(ended.set))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await ended.wait()


async def _call_in_thread(self: Any, function: Callable[[], Any]) -> Any:
    """Run a handler on the loop of its process's threads, where nothing can cancel it.

    What such a handler returns is a coroutine here: it is what the thread does. How it ends is told as the shipped
    code tells it.
    """
    main = _loop()
    future: asyncio.Future[Any] = main.create_future()

    async def work() -> None:
        result, error = None, None
        try:
            result = await function()
        except BaseException as caught:  # noqa: BLE001 - as threads do: it goes to whoever waits
            error = caught
        self._ended(main, (future, result, error))

    main.process.threads.create_task(work())
    try:
        return await future
    finally:
        if future.cancelled():
            self.abandoned += 1
            self._on_abandon(self.abandoned)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Let the shipped code live in a simulation for the length of the block."""
    with contextlib.ExitStack() as stack:
        for name in _MODULES:
            module = importlib.import_module(f"fencepost.runtime.{name}")
            for attribute, real, substitute in (("time", time, CLOCK), ("random", random, CHANCE)):
                if getattr(module, attribute, None) is real:
                    stack.enter_context(mock.patch.object(module, attribute, substitute))
        store = importlib.import_module("fencepost.store.outbox")
        stack.enter_context(mock.patch.object(store, "random", CHANCE))
        for target, attribute, value in (
            (link, "connect", _connect),
            (link, "hang_up", _hang_up),
            (link, "is_shared", _is_shared),
            (link, "AsyncPsycopgDriver", lambda connection: connection),
            (wakeup, "connect", _connect),
            (wakeup, "hang_up", _hang_up),
            (wakeup, "is_shared", _is_shared),
            (heartbeat.Heartbeat, "start", _beat),
            (heartbeat.Heartbeat, "stop", _stop_beating),
            (threads.Threads, "call", _call_in_thread),
            (lifecycle.LeaseHolder, "_check_schema", _check_schema),
            # (Every loop keeps its tasks; a list of all tasks would cost as much as the tasks.)
            (_list_of_all_tasks(), "add", bool),
            (retention, "REST_SECONDS", 0.15),
            # The first looks in vain come less close together: nearly half of all steps were such looks.
            (pacing, "LEAST_PAUSE", 0.04),
        ):
            stack.enter_context(mock.patch.object(target, attribute, value))
        stack.enter_context(_quiet())
        yield


def _list_of_all_tasks() -> Any:
    # (Python 3.12 has given it another name.)
    names = vars(asyncio.tasks)
    return names["_all_tasks"] if "_all_tasks" in names else names["_scheduled_tasks"]


def collect() -> None:
    """Collect rubbish, between two schedules.

    That closes the coroutines of killed processes, which run what they have for such an end: on a loop that is
    gone as well, since asyncio would make a real one for them; and again, until what they made is no more.
    """
    nowhere = VirtualLoop(World(random.Random(0), 0), "nowhere")
    nowhere.is_gone = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coroutines that were never awaited
        set_running_loop(nowhere.as_asyncio)
        try:
            while gc.collect():
                pass
        finally:
            set_running_loop(None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what killed processes leave behind, and every log line but what nobody understands."""
    root = logging.getLogger("fencepost")
    handler = _Unexplained(logging.ERROR)
    before = root.level, root.propagate
    hook = sys.unraisablehook
    root.setLevel(logging.ERROR)
    root.propagate = False
    root.addHandler(handler)
    sys.unraisablehook = lambda _: None
    # Rubbish is collected between schedules, never within one: it would run parts of killed processes.
    was_enabled = gc.isenabled()
    gc.disable()
    collect()
    gc.freeze()  # what is there already is not looked at again and again
    try:
        yield
    finally:
        gc.unfreeze()
        collect()
        if was_enabled:
            gc.enable()
        sys.unraisablehook = hook
        root.removeHandler(handler)
        root.setLevel(before[0])
        root.propagate = before[1]
