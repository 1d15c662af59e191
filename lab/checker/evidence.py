"""History and tables together, in the views that the judges need; worked out once each."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lab.checker.history import History, Line
from lab.checker.job_transitions import JobStep, job_step_of
from lab.checker.tables import Audit, Change, QueueChange, State, Tables
from lab.checker.transitions import DELETE, INSERT, TAKES, Step, step_of

NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Publish:
    """One run of a publisher; ``end`` and ``result`` are None where its process did not live to tell."""

    message_id: str
    id: int
    queue: str
    token: int
    attempt: int
    owner: str
    process: str
    payload: str
    headers: str
    start: int
    end: int | None
    result: str | None

    def __str__(self) -> str:
        return f"message {self.id} ({self.message_id}) under token {self.token} by {self.process}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the run; ``end`` equals ``begin`` where it took no time."""

    fault: str
    target: str
    begin: int
    end: int
    process: str
    message_id: str | None


WRAP = 2**32
"""`pg_stat_activity` shows transaction ids without their epoch."""

INSTANT = frozenset({"sigkill", "sigterm", "cut", "lost_commit_answer", "poison", "receiver_cut"})
LOSSY = "failover_lossy"
LEAST_STARVED = 0.2
"""Seconds below which a machine that was busy with others explains nothing."""


class Clock:
    """Turns the database's microseconds into the machine's monotonic nanoseconds, by what `clock` lines say."""

    def __init__(self, samples: Sequence[tuple[int, int]]) -> None:
        self._samples = sorted(samples)

    @property
    def is_known(self) -> bool:
        return bool(self._samples)

    def mono(self, micros: int) -> int:
        """Return when it was ``micros`` in the database, by the nearest reading of both clocks."""
        place = bisect.bisect(self._samples, (micros, 0))
        near = self._samples[max(0, place - 1) : place + 1]
        database, at = min(near, key=lambda sample: abs(sample[0] - micros))
        return at + (micros - database) * 1000


class Evidence:
    """What is known of one run."""

    def __init__(self, history: History, tables: Tables) -> None:
        self.history, self.tables = history, tables
        self._limits: dict[str, set[int]] = {}
        campaign = history.campaign
        self.lease, self.poll = float(campaign["lease"]), float(campaign["poll"])
        self.publish_timeout = float(campaign["publish_timeout"])
        self.client_timeout = float(campaign.get("client_timeout", self.publish_timeout / 2))
        self.lease_margin = float(campaign.get("lease_margin", 0.35))
        self.tolerance = float(campaign.get("tolerance", 0))
        """Seconds that a loaded machine may take longer than the specification says."""
        self.max_attempts = int(campaign["max_attempts"])
        self.slack = round((1 + self.tolerance) * 1e9)
        """Nanoseconds by which instants of two clocks may be mistaken: the database's is compared on a machine
        that may be busy, and a receiver may note its own by a clock that others set."""

    # --- rows ----------------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> list[Step]:
        """Every change of the outbox, in order, with what it is."""
        return [step_of(change) for change in self.tables.changes]

    @cached_property
    def job_steps(self) -> list[JobStep]:
        """Every change of the job queue, in order, with what it is."""
        return [job_step_of(change) for change in self.tables.jobs]

    @cached_property
    def steps_of(self) -> dict[int, list[Step]]:
        """The changes of each row."""
        found: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            found[step.change.id].append(step)
        return found

    @cached_property
    def ids_of(self) -> dict[str, list[int]]:
        """The rows of each message: one, or more where its event went to several destinations."""
        found: dict[str, list[int]] = defaultdict(list)
        for step in self.steps:
            if step.event == INSERT:
                found[step.new.message_id].append(step.change.id)
        return found

    @cached_property
    def last(self) -> dict[int, Change[State]]:
        """The last change of each row."""
        return {step.change.id: step.change for step in self.steps}

    @cached_property
    def claims(self) -> dict[tuple[int, int], Step]:
        """The claim of each (row, token)."""
        return {(step.change.id, step.new.token): step for step in self.steps if step.event in TAKES}

    @cached_property
    def keys(self) -> dict[tuple[str, str], list[int]]:
        """The rows of each (queue, ordering key), in the order of their ids."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for step in self.steps:
            if step.event == INSERT and step.new.key is not None:
                found[step.new.queue, step.new.key].append(step.change.id)
        return {key: sorted(ids) for key, ids in found.items()}

    @cached_property
    def audits(self) -> dict[tuple[int, int, str], Audit]:
        """What operators did, by row, instant and action."""
        return {(audit.row_id, audit.at, audit.action): audit for audit in self.tables.audits}

    def faults_of_steps(self, guarantee: str) -> Iterator[tuple[Step, str]]:
        """Yield what is wrong with single changes under a guarantee."""
        for step in self.steps:
            for name, text in step.faults:
                if name == guarantee:
                    yield step, text

    @cached_property
    def deleted(self) -> set[int]:
        return {step.change.id for step in self.steps if step.event == DELETE}

    def seen_open(self, change: Change[Any]) -> int:
        """Return when the transaction of a change was last seen open, or 0: until then nobody else saw it."""
        return self._seen_open.get(change.txid % WRAP, 0)

    @cached_property
    def _seen_open(self) -> dict[int, int]:
        """When a sampler last asked for each transaction and found it open."""
        found: dict[int, int] = {}
        for sample in self.history.of("sample"):
            for row in sample["open"]:
                if row.get("xid") is not None:
                    found[row["xid"]] = max(found.get(row["xid"], 0), sample["asked"])
        return found

    # --- what limits were in force -------------------------------------------------------------------------

    def limits_at(self, queue: str, at: int | None = None, since: int | None = None) -> set[int]:
        """Return the limits of attempts that a worker may have had for a queue at an instant, or ever.

        A worker learns of a change within a poll; a statement may be that old besides. One that was frozen or cut
        off goes on with what it knew before.

        Args:
            since: from when on it may have known them, where it kept what it knew.
        """
        changes = self._settings_of.get(queue, [])
        if at is None:
            if queue not in self._limits:
                self._limits[queue] = {self.max_attempts, *(self._limit(each.max_attempts) for each in changes)}
            return self._limits[queue]
        known = bisect.bisect(changes, self._known_since(at if since is None else since), key=lambda each: each.at)
        so_far = bisect.bisect(changes, at, key=lambda each: each.at)
        found = {self._limit(each.max_attempts) for each in changes[max(0, known - 1) : so_far]}
        return found if known else found | {self.max_attempts}

    def _known_since(self, at: int) -> int:
        """Return how old a worker's settings may be at an instant, all in microseconds of the database."""
        since = at - round((2 * self.poll + 1) * 1e6)
        if not self.clock.is_known:
            return since
        begin, now = self.clock.mono(since), self.clock.mono(at)
        held_up = [
            fault.begin for fault in self.faults_during(begin, now) if fault.fault in ("sigstop", "black_hole")
        ]
        return since - max(0, begin - min(held_up, default=begin)) // 1000

    @cached_property
    def _settings_of(self) -> dict[str, list[QueueChange]]:
        found: dict[str, list[QueueChange]] = defaultdict(list)
        for change in self.tables.queues:
            found[change.queue].append(change)
        return found

    @cached_property
    def held_queues(self) -> set[str]:
        """The queues that nobody has to claim from at the end."""
        return {queue for queue, changes in self._settings_of.items() if changes[-1].is_held}

    def _limit(self, of_queue: int | None) -> int:
        return self.max_attempts if of_queue is None else of_queue

    # --- publishes, arrivals, producers ----------------------------------------------------------------------

    @cached_property
    def publishes(self) -> list[Publish]:
        """All of them, in the order of their starts."""
        ends: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
        for line in self.history.of("publish_end"):
            ends[line.process, line["id"], line["token"]].append(line)
        found = []
        for line in self.history.of("publish_start"):
            waiting = ends[line.process, line["id"], line["token"]]
            found.append(_publish(line, waiting.pop(0) if waiting else None))
        return found

    @cached_property
    def publishes_of(self) -> dict[int, list[Publish]]:
        """The publishes of each row, in the order of their tokens."""
        found: dict[int, list[Publish]] = defaultdict(list)
        for publish in self.publishes:
            found[publish.id].append(publish)
        for each in found.values():
            # A failover that lost commits hands tokens out again.
            each.sort(key=lambda publish: (self._losses_before(publish.start), publish.token, publish.start))
        return dict(found)  # who looks for what is not there must not add it

    def _losses_before(self, at: int) -> int:
        return sum(fault.end < at for fault in self.lossy)

    @cached_property
    def publishes_by(self) -> dict[str, list[Publish]]:
        """The publishes of each process, in the order of their starts."""
        found: dict[str, list[Publish]] = defaultdict(list)
        for publish in self.publishes:
            found[publish.process].append(publish)
        return dict(found)

    @cached_property
    def accepted(self) -> list[Line]:
        return list(self.history.of("accepted"))

    @cached_property
    def _accepted_of(self) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.accepted:
            found[line["message_id"]].append(line)
        return dict(found)

    def arrivals(self, message_id: str, queue: str, *, but_withheld: bool = False) -> list[Line]:
        """Return where a message arrived at a queue's destination, in order.

        Args:
            but_withheld: without those whose acknowledgement was withheld on purpose.
        """
        return [
            line
            for line in self._accepted_of.get(message_id, ())
            if line.get("queue") in (None, queue)
            if not (but_withheld and line.get("acknowledged") is False)
        ]

    @cached_property
    def enqueued(self) -> dict[str, Line]:
        """What producers set out to enqueue."""
        return {line["message_id"]: line for line in self.history.of("enqueue")}

    @cached_property
    def stored(self) -> dict[str, str]:
        """The digest of each message's payload, as it was inserted."""
        return {
            step.new.message_id: step.change.payload
            for step in self.steps
            if step.event == INSERT and step.change.payload is not None
        }

    @cached_property
    def enqueued_from(self) -> dict[str, int]:
        """When producers first set out to enqueue each message."""
        return {line["message_id"]: line.at for line in reversed(self.history.of("enqueue"))}

    @cached_property
    def gone(self) -> dict[str, int]:
        """When each process was seen to have ended."""
        return {line["of"]: line.at for line in self.history.of("exit")}

    @cached_property
    def rolled_back(self) -> set[str]:
        return self._named("rollback")

    @cached_property
    def committed(self) -> set[str]:
        """What producers were told is committed."""
        return self._named("commit")

    def _named(self, kind: str) -> set[str]:
        return {message_id for line in self.history.of(kind) for message_id in line["message_ids"]}

    # --- faults and clocks -----------------------------------------------------------------------------------

    @cached_property
    def faults(self) -> list[Fault]:
        ends = {line["fault_id"]: line.at for line in self.history.of("fault_end")}
        starved = [
            Fault("starved", line["of"], line["since"], line.at, line.process, None)
            for line in self.history.of("starved")
            if line["seconds"] >= LEAST_STARVED
        ]
        return starved + [
            Fault(
                line["fault"],
                line["target"],
                line.at,
                ends.get(line["fault_id"], line.at if line["fault"] in INSTANT else NEVER),
                line.process,
                line.get("message_id"),
            )
            for line in self.history.of("fault")
        ]

    @cached_property
    def lossy(self) -> list[Fault]:
        """Failovers that lost commits."""
        return [fault for fault in self.faults if fault.fault == LOSSY]

    def faults_during(self, since: int, until: int) -> Iterator[Fault]:
        """Yield the faults that were on at some time between two instants, in the order in which they began."""
        faults, begins, longest = self._faults_by_begin
        for place in range(bisect.bisect_left(begins, since - longest), bisect.bisect_right(begins, until)):
            if faults[place].end >= since:
                yield faults[place]

    @cached_property
    def _faults_by_begin(self) -> tuple[list[Fault], list[int], int]:
        faults = sorted(self.faults, key=lambda fault: fault.begin)
        return faults, [fault.begin for fault in faults], max((f.end - f.begin for f in faults), default=0)

    @cached_property
    def sigterms(self) -> dict[str, int]:
        """When each process was told to stop: it may take its grace from then on."""
        return {fault.target: fault.begin for fault in reversed(self.faults) if fault.fault == "sigterm"}

    def was_lossy_after(self, at: int) -> bool:
        """Whether a later failover may have lost what was committed at an instant."""
        return any(fault.end >= at for fault in self.lossy)

    def was_lossy_between(self, one: int, other: int) -> bool:
        """Whether a failover between two instants may have lost what was told as committed at the first."""
        told = one - round(self.lease * 1e9)  # a line may be written some time after the answer
        return any(fault.end >= told and fault.begin <= other for fault in self.lossy)

    def claim_was_lossy(self, at: int) -> bool:
        """Whether a failover may have lost the claim under which something began: leases outlast it."""
        return self.was_lossy_after(at - round(self.lease * 1e9))

    @cached_property
    def clock(self) -> Clock:
        return Clock([(line["database"], line.at) for line in self.history.of("clock")])


def _publish(start: Line, end: Line | None) -> Publish:
    return Publish(
        start["message_id"],
        start["id"],
        start["queue"],
        start["token"],
        start["attempt"],
        start["owner"],
        start.process,
        start["payload"],
        start["headers"],
        start.at,
        None if end is None else end.at,
        None if end is None else end["result"],
    )
