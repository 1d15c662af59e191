"""Why a message was published again: each repeat gets one cause, from what the history and the rows say of it."""

from __future__ import annotations

from dataclasses import dataclass

from lab.checker.evidence import NEVER, Evidence, Publish
from lab.checker.history import Line
from lab.checker.transitions import GIVE_BACK, HEARTBEAT, RECLAIM, RETRY, TAKES, Step
from lab.checker.workers import hits, is_of_server

FAILED = "the publish failed"
DEFERRED = "it was deferred"
TIMED_OUT = "publish time-out"
GAVE_UP = "its client waited no longer for the acknowledgement"
LEASE_ENDING = "its lease was about to end, so its client waited no longer for the acknowledgement"
SHUTDOWN = "shutdown past its grace"
ACKNOWLEDGEMENT_LOST = "the receiver's acknowledgement was lost"
OPERATOR_RETRY = "operator retry"
OUT_OF_TURN = "published out of turn, and given back"
LOST_LEASE_SEEN = "the publish was cut off since its lease was lost"
RAN_OUT = "the lease ran out under a publish"
KILLED = "takeover: its worker was killed"
POISONED = "takeover: a poison message killed its worker"
FROZEN = "takeover: its worker was frozen"
CUT = "takeover: its worker's connections were cut"
ANSWER_LOST = "takeover: the answer to a commit was lost"
BLACK_HOLE = "takeover: its worker was cut off by a black hole"
LOOP_BLOCKED = "takeover: its worker's event loop was blocked"
SERVER_LOST = "takeover: the database was gone"
STARVED = "takeover: the machine kept its worker from running"
LOSSY_FAILOVER = "a lossy failover took back what was written"
SENT_AGAIN = "the connection to the receiver was cut, and it was sent again within the attempt"

_BY_FAULT = {
    "sigkill": KILLED,
    "poison": POISONED,
    "sigstop": FROZEN,
    "sigterm": SHUTDOWN,
    "lost_commit_answer": ANSWER_LOST,
    "cut": CUT,
    "black_hole": BLACK_HOLE,
    "loop_blocked": LOOP_BLOCKED,
}
"""In the order in which they are believed, where several were done at once."""

A_MISTAKE = 25_000_000
"""Nanoseconds by which the two clocks are mistaken, where nothing keeps anybody from reading them."""

RECEIVER_FAULTS = frozenset({"receiver_down", "receiver_cut"})


@dataclass(frozen=True, slots=True)
class Repeat:
    """A publish, and the next one of the same row; ``cause`` is None where there is none to be found."""

    before: Publish
    after: Publish
    cause: str | None
    told: str
    """What the rows say of how the earlier one ended."""


class Causes:
    """Finds causes in one run's evidence."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._accepted: dict[tuple[str, int], list[Line]] = {}
        for line in evidence.accepted:
            self._accepted.setdefault((line["message_id"], line["token"]), []).append(line)

    def of(self, before: Publish, after: Publish) -> Repeat:
        """Say why ``after`` was published although ``before`` was."""
        claimed = before.start - round(self._evidence.lease * 1e9)  # at the earliest
        if any(claimed <= fault.end and fault.begin <= after.start for fault in self._evidence.lossy):
            return Repeat(before, after, LOSSY_FAILOVER, "")
        ended = self._ended(before)
        if ended is None:
            return Repeat(before, after, None, "no change of the row ended it")
        return Repeat(before, after, self._cause(before, after, ended), f"then came: {ended.event}")

    @property
    def _late_start(self) -> int:
        """Nanoseconds after the end of a lease at which a publish may seem to begin that began before it.

        (Clocks may be mistaken by that much; for a worker that well knows its lease, its time-out lies between.)
        """
        return A_MISTAKE + round(self._evidence.tolerance * 1e9)

    def _ended(self, publish: Publish) -> Step | None:
        """Return the change that took the row from under a publish, or gave it back."""
        for step in self._evidence.steps_of.get(publish.id, ()):
            new = step.change.new
            if new is None or new.token < publish.token or step.event == HEARTBEAT:
                continue
            if step.event in TAKES and new.token == publish.token:
                continue
            return step
        return None

    def _cause(self, before: Publish, after: Publish, ended: Step) -> str | None:
        if self._retried_between(before, after):
            return OPERATOR_RETRY
        if ended.event == GIVE_BACK:
            return self._given_back(before, ended)
        if ended.event == RECLAIM:
            return self._taken_over(before, ended)
        # It was buried or closed: only an operator puts such a row back.
        return None

    def _retried_between(self, before: Publish, after: Publish) -> bool:
        steps = self._evidence.steps_of.get(before.id, ())
        return any(step.event == RETRY and before.token < step.new.token < after.token for step in steps)

    # --- its own worker gave it back -------------------------------------------------------------------------

    def _given_back(self, publish: Publish, ended: Step) -> str | None:
        match publish.result:
            case "delivered":
                return OUT_OF_TURN if self._was_out_of_turn(ended) else None
            case "retryable" | "unexpected" | "defer" | "permanent":
                return self._failed(publish, DEFERRED if publish.result == "defer" else FAILED)
            case "cancelled":
                return self._cut_off(publish)
            case _:
                # A thread that nobody can cancel: its time ran out all the same.
                return TIMED_OUT if self._lasted(publish, self._mono(ended)) else self._shut_down(publish, ended)

    def _failed(self, publish: Publish, cause: str) -> str | None:
        """A failure that the receiver accepted is a lost acknowledgement, and that has a reason of its own."""
        arrived = self._accepted.get((publish.message_id, publish.token), [])
        arrived = [line for line in arrived if line.at >= publish.start]  # not an earlier one of the same token
        if not arrived:
            return cause
        is_withheld = any(line.get("acknowledged") is False for line in arrived)
        if is_withheld or self._receiver_was_disturbed(publish):
            return ACKNOWLEDGEMENT_LOST
        waited = 0 if publish.end is None else publish.end - publish.start
        if waited >= self._evidence.client_timeout * 0.9e9:
            return GAVE_UP
        return LEASE_ENDING if self._was_lease_ending(publish) else None

    def _was_lease_ending(self, publish: Publish) -> bool:
        """Whether little was left of the lease that its worker knew of when it ended.

        Where something may have lost the answer to a heartbeat, it may know of an earlier end than the row has.
        """
        if publish.end is None or not self._evidence.clock.is_known:
            return False
        at = publish.end
        ends = [
            self._evidence.clock.mono(step.new.lease_until)
            for step in self._evidence.steps_of.get(publish.id, ())
            if step.event in (HEARTBEAT, *TAKES) and step.new.token == publish.token and self._mono(step) < at
            if step.new.lease_until is not None
        ]
        near = [at >= end - round(self._evidence.lease_margin * 1e9) for end in ends]
        return bool(near) and (near[-1] or (any(near) and self._explaining(publish, at) is not None))

    def _receiver_was_disturbed(self, publish: Publish) -> bool:
        end = publish.end or NEVER
        return any(
            fault.fault in RECEIVER_FAULTS
            or fault.target == "receiver"
            or (fault.fault == "sigstop" and fault.target == publish.process)
            for fault in self._evidence.faults_during(publish.start, end)
        )

    def _cut_off(self, publish: Publish) -> str | None:
        if self._lasted(publish, publish.end):
            return TIMED_OUT
        if self._sigterm_before(publish, publish.end or NEVER):
            return SHUTDOWN
        return LOST_LEASE_SEEN if self._explaining(publish, publish.end or NEVER) else None

    def _shut_down(self, publish: Publish, ended: Step) -> str | None:
        return SHUTDOWN if self._sigterm_before(publish, self._mono(ended)) else None

    def _lasted(self, publish: Publish, end: int | None) -> bool:
        """Whether it took as long as a publish may (its time begins a little before ours)."""
        timeout = max(self._evidence.publish_timeout * 0.9, self._evidence.publish_timeout - 0.25)
        return end is not None and end - publish.start >= timeout * 1e9

    def _sigterm_before(self, publish: Publish, at: int) -> bool:
        told = self._evidence.sigterms
        return min(told.get(publish.process, NEVER), told.get("all", NEVER)) <= at

    def _was_out_of_turn(self, ended: Step) -> bool:
        """Whether an earlier message of its key was open when it was given back."""
        key = ended.new.key
        if key is None:
            return False
        for row_id in self._evidence.keys[ended.new.queue, key]:
            if row_id >= ended.change.id:
                return False
            states = [step for step in self._evidence.steps_of[row_id] if step.change.n < ended.change.n]
            if states and states[-1].change.new is not None and states[-1].new.is_open:
                return True
        return False

    # --- somebody took it over -------------------------------------------------------------------------------

    def _taken_over(self, publish: Publish, ended: Step) -> str | None:
        until = self._mono(ended)
        # One that was held up may begin only after the takeover.
        cause = self._explaining(publish, until if until == NEVER else max(until, publish.start))
        if cause is not None:
            return cause
        lease_end = ended.old.lease_until
        if (
            lease_end is None
            or not self._evidence.clock.is_known
            or self._evidence.gone.get(publish.process, NEVER) < until
        ):
            return None
        # Nothing was done to it, but the publish itself went on past the end of its lease. (None begins after it.)
        end = self._evidence.clock.mono(lease_end)
        went_on = publish.end is None or publish.end >= end
        return RAN_OUT if went_on and publish.start <= end + self._late_start else None

    def _explaining(self, publish: Publish, until: int) -> str | None:
        """Return what was done to the worker or the database between the claim and the takeover."""
        claim = self._evidence.claims.get((publish.id, publish.token))
        since = publish.start if claim is None else min(publish.start, self._mono(claim))
        # A connection that hangs is not given up at once, and one may hang since a freeze: the fault may have been
        # over before the claim.
        since -= round(self._evidence.lease * 1e9)
        found = [fault for fault in self._evidence.faults_during(since, until) if hits(fault, publish.process)]
        names = {fault.fault for fault in found if not is_of_server(fault)}
        if self._sigterm_before(publish, until):  # a shutdown goes on after its signal
            names.add("sigterm")
        for name, cause in _BY_FAULT.items():
            if name in names:
                return cause
        if any(is_of_server(fault) for fault in found):
            return SERVER_LOST
        return STARVED if "starved" in names else None

    def _mono(self, step: Step) -> int:
        """Return when a change was made; without clocks, later than anything."""
        return self._evidence.clock.mono(step.change.at) if self._evidence.clock.is_known else NEVER
