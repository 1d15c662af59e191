"""A process: the shipped code on loops of its own, killed, paused, stopped and started again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from fencepost.runtime.dispatcher import Dispatcher
from fencepost.runtime.lifecycle import LeaseHolder
from fencepost.runtime.routes import Route
from lab.simulator.loop import VirtualLoop
from lab.simulator.plan import Fault
from lab.simulator.publisher import BatchReceiver, Receiver

if TYPE_CHECKING:
    from lab.simulator.connection import Connection
    from lab.simulator.run import MessageRun, Run

RESTART_SECONDS = 0.3
"""Until another process stands in the place of one that is gone."""


class Client:
    """Whoever has connections: a process, or those who stand outside and are never hurt."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        self.loop = VirtualLoop(run.world, name, self)
        self.connections: list[Connection] = []
        self.incarnation = 0
        self.hurt: list[tuple[float, str]] = []
        """When something happened to it that may cost it a lease, and what."""

    @property
    def label(self) -> tuple[str, int]:
        return self.name, self.incarnation

    def next_fault(self, role: str) -> Fault | None:
        """Return what happens at the next statement, which goes over the connection for this."""
        return None

    def crash(self, why: str) -> None:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        raise NotImplementedError

    def note(self, what: str, seconds: float = 0.0) -> None:
        """Note that something happens to it that may cost it leases, until it is over."""
        self.hurt.append((self.run.world.now + seconds, what))

    def why_lost(self, since: float) -> str | None:
        """Return what may have cost it a lease that it had at an instant; None where nothing did."""
        every = [what for until, what in (*self.hurt, *self.run.hurt) if until >= since]
        return every[0] if every else None


class Process(Client, ABC):
    """One that works under leases, and those that take its place under the same name."""

    holder: LeaseHolder[Any]
    """The shipped code that runs in it."""

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run, f"w{number}")
        self.number = number
        self.is_up = False
        self.loops: tuple[VirtualLoop, ...] = ()
        self._sent = self._written = 0
        self._held_until = 0.0

    def next_fault(self, role: str) -> Fault | None:
        self._sent += 1
        fault = self.run.statement_faults.get(("statement", self.number, self._sent))
        if role == "finalize":
            self._written += 1
            fault = fault or self.run.statement_faults.get(("write", self.number, self._written))
        return None if fault is None or self.run.are_faults_over else fault

    @property
    def is_held(self) -> bool:
        return any(each.is_held for each in self.loops)

    @property
    def held(self) -> int:
        """How many rows it holds, as it knows."""
        held = getattr(self.holder, "_held", None)
        return 0 if held is None else len(held)

    # --- its life ---

    def start(self) -> None:
        """Start a process under this name."""
        run = self.run
        if run.is_over:
            return
        self.incarnation += 1
        self.is_up = True
        self.started_at = run.world.now
        self.loops = self._made_loops()
        self.connections = []
        run.trace(self.name, "starts", self.incarnation)
        self.holder = self._made()
        self._task = self.loop.create_task(self._live())

    def _made_loops(self) -> tuple[VirtualLoop, ...]:
        """Make its main loop, and those of its threads."""
        self.loop = VirtualLoop(self.run.world, self.name, self)
        self.loop.beside = VirtualLoop(self.run.world, f"{self.name} heartbeat", self)
        return self.loop, self.loop.beside

    @abstractmethod
    def _made(self) -> LeaseHolder[Any]:
        """Make what runs in it."""

    async def _live(self) -> None:
        incarnation = self.incarnation
        try:
            drained = await self.holder.run(handle_signals=False)
        except Exception as error:  # noqa: BLE001 - whatever ends it is a finding
            self.run.watch.violated("alive", f"{self.name} ended by itself: {error!r}")
            return
        if incarnation == self.incarnation:
            self.run.trace(self.name, "has stopped", drained)
            self.run.watch.has_stopped(self)
            self._gone(0.0)

    def crash(self, why: str) -> None:
        """Kill it: nothing of it runs again, and nothing is cleaned up."""
        if not self.is_up:
            return
        self.run.trace(self.name, "is killed", why)
        self.note(why)
        self._gone(self.run.notice_seconds())

    def _gone(self, notice: float) -> None:
        self.is_up = False
        for loop in self.loops:
            loop.end()
        for connection in self.connections:
            connection.vanish(notice)
        self.run.world.call_later(RESTART_SECONDS, self.start)

    def pause(self, seconds: float) -> None:
        """Stop it for a while, as SIGSTOP does."""
        if not self.is_up:
            return
        self.run.trace(self.name, "is paused", round(seconds, 3))
        self.note("pause", seconds)
        self._hold(self.loops, seconds)

    def block(self, seconds: float) -> None:
        """Block its main loop for a while, as an async function does that does blocking work."""
        if not self.is_up:
            return
        self.run.trace(self.name, "is blocked", round(seconds, 3))
        self.note("blocked loop", seconds)
        self._hold((self.loop,), seconds)

    def _hold(self, loops: tuple[VirtualLoop, ...], seconds: float) -> None:
        for loop in loops:
            loop.hold()
        self._held_until = max(self._held_until, self.run.world.now + seconds)
        self.run.world.call_later(seconds, self._go_on, loops)

    def _go_on(self, loops: tuple[VirtualLoop, ...]) -> None:
        if self.run.world.now < self._held_until - 1e-9:
            return
        for loop in (*loops, *self.loops):
            loop.go_on()

    def vanish(self) -> None:
        """Have its connections cut, all at once."""
        self.run.trace(self.name, "loses its connections")
        self.note("cut connections")
        for connection in self.connections:
            connection.cut()

    def stop(self, hurries: bool = False) -> None:
        """Tell it to stop, as SIGTERM does; or twice."""
        if not self.is_up:
            return
        self.run.trace(self.name, "is told to stop")
        self.note("shutdown", self.run.plan.grace + 1.0)
        self.run.watch.is_told_to_stop(self)
        for _ in range(2 if hurries else 1):
            self.loop.call_soon(self.holder.stop)

    def is_well_since(self, since: float) -> bool:
        """Tell whether it runs, and has been let alone since an instant."""
        return (
            self.is_up
            and self.started_at < since
            and not any(until >= since for until, _ in (*self.hurt, *self.run.hurt))
        )

    def was_only_told_to_stop(self) -> bool:
        """Tell whether nothing else has happened to it since it was started."""
        hurt = [what for until, what in (*self.hurt, *self.run.hurt) if until >= self.started_at]
        return all(what == "shutdown" for what in hurt)


class DispatcherProcess(Process):
    """One dispatcher, and those that take its place."""

    run: MessageRun
    holder: Dispatcher

    def _made(self) -> Dispatcher:
        receiver = (BatchReceiver if self.run.plan.takes_batches else Receiver)(self)
        return Dispatcher("postgresql://simulated", [Route("*", receiver)], self.run.settings)
