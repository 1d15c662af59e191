"""Event loops on a virtual clock: time jumps to the next timer whenever nothing is ready.

A simulated process has two of them, as a real one has: its main loop and that of its heartbeat thread. Within a
loop what is ready runs first in, first out, as asyncio promises; which loop comes next is chosen by the seed, as
processes and threads promise nothing. A loop that is held does not run, whatever becomes ready: its process is
stopped, or its thread blocked. One that is gone never runs again, and nothing of it is cleaned up.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

_set_running_loop = asyncio._set_running_loop  # noqa: SLF001 - meant for those who make event loops


class Endless(Exception):
    """A schedule took more steps than any sound one needs: something runs in circles."""


class Handle:
    """A callback that is to run once, unless it is cancelled."""

    __slots__ = ("args", "callback", "context", "loop", "when")

    def __init__(
        self, loop: VirtualLoop, callback: Callable[..., Any], args: tuple[Any, ...], context: Any, when: float
    ) -> None:
        self.loop, self.context, self.args, self.when = loop, context, args, when
        self.callback: Callable[..., Any] | None = callback

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class World:
    """The clock, and every loop that lives by it.

    Args:
        choose: makes every choice of which loop runs next.
        most_steps: callbacks after which the schedule is given up.
    """

    def __init__(self, choose: random.Random, most_steps: int) -> None:
        self.now = 1_000.0
        self.steps = 0
        self._most_steps = most_steps
        self._choose = choose
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._runnable: list[VirtualLoop] = []

    def at(self, handle: Handle) -> None:
        self._count += 1
        heapq.heappush(self._timers, (handle.when, self._count, handle))

    def is_runnable(self, loop: VirtualLoop) -> None:
        self._runnable.append(loop)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run until a condition holds, asked whenever time is about to go on, or until nothing is left to do."""
        runnable, choose = self._runnable, self._choose.random
        try:
            while True:
                while runnable:
                    many = len(runnable)
                    loop = runnable.pop(int(choose() * many)) if many > 1 else runnable.pop()
                    loop.is_listed = False
                    if not loop.is_held and not loop.is_gone:
                        self.steps += loop.turn()
                if self.steps > self._most_steps:
                    raise Endless(f"more than {self._most_steps} steps")
                if is_over() or not self._timers:
                    return
                self._fire()
        finally:
            _set_running_loop(None)

    def _fire(self) -> None:
        """Move on to the next timer, and fire all of that instant."""
        timers = self._timers
        fired = False
        while timers and (not fired or timers[0][0] <= self.now):
            when, _, handle = heapq.heappop(timers)
            if handle.callback is None or handle.loop.is_gone:
                continue
            fired = True
            if when > self.now:
                self.now = when
            handle.loop.enter(handle)


class VirtualLoop:
    """One event loop of the world: no sockets, no threads, and time only as the world has it."""

    beside: VirtualLoop
    """That of the heartbeat's thread, beside a main loop."""

    def __init__(self, world: World, name: str, process: Any = None) -> None:
        self.world, self.name, self.process = world, name, process
        self.is_held = self.is_gone = self.is_listed = False
        self._ready: deque[Handle] = deque()
        self.failures: list[dict[str, Any]] = []
        # It has of an event loop what the shipped code needs, and that is all.
        self.as_asyncio = cast("asyncio.AbstractEventLoop", self)

    def __repr__(self) -> str:
        return f"<loop of {self.name}>"

    # --- the world's side --------------------------------------------------------------------------------

    def enter(self, handle: Handle) -> None:
        self._ready.append(handle)
        if not self.is_listed and not self.is_held:
            self.is_listed = True
            self.world.is_runnable(self)

    def turn(self) -> int:
        """Run what is ready now; what becomes ready meanwhile has to wait for the next turn."""
        ready = self._ready
        many = len(ready)
        _set_running_loop(self.as_asyncio)
        for _ in range(many):
            handle = ready.popleft()
            callback = handle.callback
            if callback is not None:
                context = handle.context
                if context is None:
                    callback(*handle.args)
                else:
                    context.run(callback, *handle.args)
                if self.is_held or self.is_gone:
                    break
        if ready and not self.is_listed and not self.is_held and not self.is_gone:
            self.is_listed = True
            self.world.is_runnable(self)
        return many

    def hold(self) -> None:
        self.is_held = True

    def go_on(self) -> None:
        self.is_held = False
        if self._ready and not self.is_listed:
            self.is_listed = True
            self.world.is_runnable(self)

    # --- asyncio's side ----------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args, context, self.world.now)
        self.enter(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args, context, self.world.now + delay)
        if delay <= 0:
            self.enter(handle)
        else:
            self.world.at(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args, context, when)
        if when <= self.world.now:
            self.enter(handle)
        else:
            self.world.at(handle)
        return handle

    def time(self) -> float:
        return self.world.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_asyncio)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.as_asyncio, name=name, context=context)

    async def _at_once(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return function(*args)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """There are no threads: what would run in one runs at once."""
        return self.create_task(self._at_once(func, args))

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self.is_gone

    def is_running(self) -> bool:
        return not self.is_gone

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # (A task of a killed process that is thrown away is no failure: it is what the kill is.)
        if "exception" in context:
            self.failures.append(context)
