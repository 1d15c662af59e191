"""When a worker was well, and when it had nothing to do: what a takeover may be asked of."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property

from lab.checker.evidence import NEVER, Evidence, Fault
from lab.checker.intervals import Interval, clipped, common, merged, without
from lab.checker.transitions import HEARTBEAT, TAKES

SERVER_FAULTS = frozenset(
    {
        *("server_kill", "server_restart", "server_immediate", "failover_sync", "failover_lossy"),
        *("read_only", "disk_full"),
    }
)
CONNECTION_FAULTS = frozenset({"cut", "lost_commit_answer", "black_hole"})
ENDS = frozenset({"sigkill", "sigterm", "poison"})
"""After these a worker claims nothing more."""


def is_of_server(fault: Fault) -> bool:
    """Whether it takes the database from everybody."""
    return fault.fault in SERVER_FAULTS or (fault.target == "server" and fault.fault != "sigterm")


def hits(fault: Fault, process: str) -> bool:
    """Whether a fault was done to a process, or to what it needs of the database."""
    if is_of_server(fault):
        return True
    if fault.fault == "poison":
        return fault.process == process
    return fault.target in (process, "all")


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's life: from ``ready`` until ``gone``."""

    process: str
    owner: str
    queues: frozenset[str] | None
    born: int
    ready: int
    gone: int

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


class Workers:
    """The workers of a run, and their times."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._settle = round((evidence.lease + 2) * 1e9)
        """After a fault, at most: a connection that hangs is given up within a lease, and soon opened again."""
        self._well: dict[str, list[Interval]] = {}
        self._idle: dict[str, list[Interval]] = {}
        self._apart_from_bad: dict[str, list[Interval]] = {}

    @cached_property
    def all(self) -> list[Worker]:
        history = self._evidence.history
        ready = {line.process: line.at for line in history.of("ready")}
        gone = {line["of"]: line.at for line in history.of("exit")}
        return [
            Worker(
                line["of"],
                line.get("owner") or line["of"],
                frozenset(line["queues"]) if line.get("queues") is not None else None,
                line.at,
                ready[line["of"]],
                gone.get(line["of"], history.phase("end") or history.last_at),
            )
            for line in history.of("start")
            if line["role"] == "worker" and line["of"] in ready
        ]

    def well(self, worker: Worker) -> list[Interval]:
        """When it ran and nothing was done to it or to the server, and a while had passed since."""
        if worker.process not in self._well:
            holes = [
                (fault.begin, self._well_again(worker, fault))
                for fault in self._evidence.faults_during(worker.ready - self._settle, worker.gone)
                if fault.fault != "clock_skew" or is_of_server(fault)
                if hits(fault, worker.process)
            ]
            holes.append((worker.ready, self._claims_from(worker, worker.ready)))
            self._well[worker.process] = without([(worker.ready, worker.gone)], holes)
        return self._well[worker.process]

    def _well_again(self, worker: Worker, fault: Fault) -> int:
        """Return when a worker was over a fault: once it has claimed something since, or after a while."""
        if fault.fault in ENDS or fault.end == NEVER:
            return NEVER
        return self._claims_from(worker, fault.end)

    def _claims_from(self, worker: Worker, at: int) -> int:
        claims = self._claims.get(worker.owner, [])
        place = bisect.bisect_right(claims, at)
        return min(at + self._settle, claims[place] if place < len(claims) else NEVER)

    @cached_property
    def _claims(self) -> dict[str, list[int]]:
        """When claims were made for each owner. (Its name may be its predecessor's, but not at the same time.)"""
        found: dict[str, list[int]] = {}
        for step in self._evidence.steps:
            if step.event in TAKES and step.new.owner is not None:
                found.setdefault(step.new.owner, []).append(self._evidence.clock.mono(step.change.statement_at))
        return {owner: sorted(instants) for owner, instants in found.items()}

    def idle(self, worker: Worker) -> list[Interval]:
        """When it was well, published nothing, and held nothing."""
        if worker.process not in self._idle:
            self._idle[worker.process] = without(self.well(worker), self._busy(worker, but_bad=False))
        return self._idle[worker.process]

    def apart_from_bad(self, worker: Worker) -> list[Interval]:
        """When it was well and had nothing but bad messages."""
        if worker.process not in self._apart_from_bad:
            self._apart_from_bad[worker.process] = without(self.well(worker), self._busy(worker, but_bad=True))
        return self._apart_from_bad[worker.process]

    def _busy(self, worker: Worker, *, but_bad: bool) -> list[Interval]:
        """Return when it published or held anything; ``but_bad``: apart from when it published bad ones."""
        good: list[Interval] = []
        bad: list[Interval] = []
        for publish in self._evidence.publishes_by.get(worker.process, ()):
            part = (publish.start, worker.gone if publish.end is None else publish.end)
            (bad if self.is_bad(publish.message_id) else good).append(part)
        # Where a result cannot be written, the row is held on and on: that is not the message's fault.
        held = merged(self._held_by.get(worker.owner, ()))
        return good + (without(held, bad) if but_bad else [*held, *bad])

    @cached_property
    def _held_by(self) -> dict[str, list[Interval]]:
        """When each owner held messages: each until its result was written, or its lease ended."""
        found: dict[str, list[Interval]] = {}
        clock = self._evidence.clock
        for steps in self._evidence.steps_of.values():
            since, until = 0, 0
            for step in steps:
                if since and step.event != HEARTBEAT:
                    end = min(clock.mono(step.change.at), until)
                    found.setdefault(step.old.owner or "", []).append((since, end))
                    since = 0
                if step.change.new is None or step.new.lease_until is None:
                    continue
                until = clock.mono(step.new.lease_until)
                if step.event in TAKES:
                    since = clock.mono(step.change.statement_at)
            if since:
                found.setdefault(steps[-1].new.owner or "", []).append((since, until))
        return found

    def is_bad(self, message_id: str) -> bool:
        """Whether its producer said that it would make trouble."""
        line = self._evidence.enqueued.get(message_id)
        return line is not None and line.get("bad") is not None

    @cached_property
    def held(self) -> dict[str, list[Interval]]:
        """When each queue was paused, behind a breaker or under a rate."""
        found: dict[str, list[Interval]] = {}
        since: dict[str, int] = {}
        clock = self._evidence.clock
        for change in self._evidence.tables.queues:
            if change.is_held:
                since.setdefault(change.queue, clock.mono(change.at))
            elif change.queue in since:
                # Workers learn that it goes on within a poll.
                until = clock.mono(change.at) + round((self._evidence.poll + 1) * 1e9)
                found.setdefault(change.queue, []).append((since.pop(change.queue), until))
        for queue, begin in since.items():
            found.setdefault(queue, []).append((begin, NEVER))
        return {queue: merged(parts) for queue, parts in found.items()}

    def chances(
        self, queue: str, waiting: Interval, *, beside_bad: bool = False
    ) -> list[tuple[Worker, list[Interval]]]:
        """Return when each worker could have taken a message that waited.

        Args:
            beside_bad: also while the worker published bad messages.
        """
        open_times = without([waiting], self.held.get(queue, ()))
        when = self.apart_from_bad if beside_bad else self.idle
        return [
            (worker, common(open_times, clipped(when(worker), waiting)))
            for worker in self.all
            if worker.ready < waiting[1] and worker.gone > waiting[0] and worker.serves(queue)
        ]


def head_since(evidence: Evidence) -> dict[int, int]:
    """Return from when on each ordered row was the first open one of its key."""
    found: dict[int, int] = {}
    for ids in evidence.keys.values():
        newest = 0
        for row_id in ids:
            found[row_id] = newest
            newest = max(newest, _closed_at(evidence, row_id))
    return found


def _closed_at(evidence: Evidence, row_id: int) -> int:
    for step in evidence.steps_of[row_id]:
        if step.change.new is None or not step.new.is_open:
            return max(evidence.clock.mono(step.change.at), evidence.seen_open(step.change))
    return NEVER
