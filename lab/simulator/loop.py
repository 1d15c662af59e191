"""Event loops on a virtual clock: time jumps to the next timer whenever nothing is ready.

A simulated process has two of them, as a real one has: its main loop and that of its heartbeat thread. Within a
loop what is ready runs first in, first out, as asyncio promises; which loop comes next is chosen by the seed, as
processes and threads promise nothing. A loop that is held does not run, whatever becomes ready: its process is
stopped, or its thread blocked. One that is gone never runs again, and nothing of it is cleaned up.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, cast

set_running_loop = asyncio._set_running_loop  # noqa: SLF001 - meant for those who make event loops


class Endless(Exception):
    """A schedule took more steps than any sound one needs: something runs in circles."""


class Handle(list[Any]):
    """A callback that is to run once, unless it is cancelled.

    A list, since most of a schedule's time would go into making objects: (when, number, loop, callback, args,
    context). By the first two it stands in line among the timers.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[3] = None
        self[4] = ()

    def cancelled(self) -> bool:
        return self[3] is None


class World:
    """The clock, and every loop that lives by it.

    Args:
        choose: makes every choice of which loop runs next.
        most_steps: callbacks after which the schedule is given up.
    """

    def __init__(self, choose: random.Random, most_steps: int) -> None:
        self.now = 1_000.0
        self.loops: list[VirtualLoop] = []
        """Those that are gone as well, with their tasks: nothing of them is cleaned up before the world ends."""
        self.steps = 0
        self._most_steps = most_steps
        self._choose = choose
        self._timers: list[Handle] = []
        self._count = 0
        self.runnable: list[VirtualLoop] = []
        self.running: VirtualLoop | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Let something happen that is nobody's doing, such as that a message arrives: no loop holds it up."""
        return self.at(self.now + delay, None, callback, args, None)

    def at(
        self,
        when: float,
        loop: VirtualLoop | None,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Any,
    ) -> Handle:
        self._count += 1
        handle = Handle((when, self._count, loop, callback, args, context))
        heappush(self._timers, handle)
        return handle

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run until a condition holds, asked whenever time is about to go on, or until nothing is left to do."""
        runnable, choose = self.runnable, self._choose.random
        try:
            while True:
                while runnable:
                    many = len(runnable)
                    loop = runnable.pop(int(choose() * many)) if many > 1 else runnable.pop()
                    loop.is_listed = False
                    if not loop.is_still:
                        self.steps += loop.turn()
                if self.steps > self._most_steps:
                    raise Endless(f"more than {self._most_steps} steps")
                if is_over() or not self._fire():
                    return
        finally:
            set_running_loop(None)

    def _fire(self) -> bool:
        """Move on to the next timer, and fire it; return False where there is none."""
        timers = self._timers
        while timers:
            handle = heappop(timers)
            when, _, loop, callback, args, _ = handle
            if callback is None or (loop is not None and loop.is_gone):
                continue
            if when > self.now:
                self.now = when
            if loop is None:
                self.steps += 1
                callback(*args)
            else:
                loop.enter(handle)
            return True
        return False


class VirtualLoop:
    """One event loop of the world: no sockets, no threads, and time only as the world has it."""

    beside: VirtualLoop
    """That of the heartbeat's thread, beside a main loop."""

    def __init__(self, world: World, name: str, process: Any = None) -> None:
        self.world, self.name, self.process = world, name, process
        world.loops.append(self)
        self.is_held = self.is_gone = self.is_still = self.is_listed = False
        """Still: held or gone."""
        self._ready: deque[Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        """All of them, kept; see `World.loops`."""
        self.failures: list[dict[str, Any]] = []
        # It has of an event loop what the shipped code needs, and that is all.
        self.as_asyncio = cast("asyncio.AbstractEventLoop", self)

    def __repr__(self) -> str:
        return f"<loop of {self.name}>"

    # --- the world's side --------------------------------------------------------------------------------

    def enter(self, handle: Handle) -> None:
        self._ready.append(handle)
        if not self.is_listed and not self.is_still:
            self.is_listed = True
            self.world.runnable.append(self)

    def turn(self) -> int:
        """Run what is ready now; what becomes ready meanwhile has to wait for the next turn."""
        ready = self._ready
        many = len(ready)
        if self.world.running is not self:
            self.world.running = self
            set_running_loop(self.as_asyncio)
        for _ in range(many):
            _, _, _, callback, args, context = ready.popleft()
            if callback is not None:
                if context is None:
                    callback(*args)
                else:
                    context.run(callback, *args)
                if self.is_still:
                    return many
        if ready and not self.is_listed:
            self.is_listed = True
            self.world.runnable.append(self)
        return many

    def hold(self) -> None:
        self.is_held = self.is_still = True

    def go_on(self) -> None:
        self.is_held, self.is_still = False, self.is_gone
        if self._ready and not self.is_listed:
            self.is_listed = True
            self.world.runnable.append(self)

    def end(self) -> None:
        """Let nothing of it run again."""
        self.is_gone = self.is_still = True

    # --- asyncio's side ----------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = Handle((0.0, 0, self, callback, args, context))
        # (As `enter`, which would be one call more for each of them.)
        self._ready.append(handle)
        if not self.is_listed and not self.is_still:
            self.is_listed = True
            self.world.runnable.append(self)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        if delay <= 0:
            return self.call_soon(callback, *args, context=context)
        world = self.world
        return world.at(world.now + delay, self, callback, args, context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        if when <= self.world.now:
            return self.call_soon(callback, *args, context=context)
        return self.world.at(when, self, callback, args, context)

    def time(self) -> float:
        return self.world.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_asyncio)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        if self.is_gone:
            # Only what is closed as rubbish still asks for one: nothing shall come of it, nor be left over.
            coro.close()
            nothing = self.create_future()
            nothing.cancel()
            return cast("asyncio.Task[Any]", nothing)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self.as_asyncio, name=name, context=context)
        self._tasks.append(task)
        return task

    async def _at_once(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return function(*args)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """There are no threads: what would run in one runs at once."""
        return self.create_task(self._at_once(func, args))

    get_debug = bool
    """False; asked for every future, and so as cheap as can be."""

    def is_closed(self) -> bool:
        return self.is_gone

    def is_running(self) -> bool:
        return not self.is_gone

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # (A task of a killed process that is thrown away is no failure: it is what the kill is.)
        if "exception" in context:
            self.failures.append(context)
