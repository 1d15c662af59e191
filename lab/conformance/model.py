"""The model: what each step may do, by the table of `fencepost.core.states` and the rules beside it.

It says which rows may change how, and what is returned. Where a store has a choice (which of several claimable
messages it takes, what it parks) the model takes over the choice and judges it; everything else it foretells.
"""

from __future__ import annotations

from collections import Counter
from functools import singledispatchmethod
from hashlib import sha256
from itertools import count
from typing import Any

from fencepost.core.inbox import Acceptance
from fencepost.core.records import Enqueued
from fencepost.core.states import Event, State
from lab.conformance import job_steps as j
from lab.conformance import model_claims as claims
from lab.conformance import model_holders as holders
from lab.conformance import model_jobs
from lab.conformance import model_ledger as ledger
from lab.conformance import steps as s
from lab.conformance.judged import Call, Judged
from lab.conformance.model_job_steps import JobModel
from lab.conformance.model_rows import STEP_TAKES, Queue, Row, Sight, demand, micros
from lab.conformance.seen import Look, Rest
from lab.conformance.store import Ended
from lab.conformance.work import BREAKER_MINUTES, chosen


class Model:
    """What is committed, and what each session has written besides."""

    def __init__(self) -> None:
        self.now = 0
        self._committed: dict[Any, Any] = {}
        self._own: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self.is_open = [False, False]
        self._turns = count(1)
        self._jobs = JobModel()

    # --- sessions ---

    def sight(self, session: int) -> Sight:
        """Return what a session sees."""
        return Sight(self._committed, self._own[session], self.now, self._turns)

    def begin(self, session: int) -> None:
        self.is_open[session] = True

    def end(self, session: int, *, commits: bool) -> None:
        own = self._own[session]
        if commits:
            self._committed.update(own)
        own.clear()
        self.is_open[session] = False

    def pass_time(self, minutes: int) -> None:
        self.now += micros(minutes) + 1_000

    def lose(self, row_id: int) -> None:
        self._committed[("row", row_id)] = None

    # --- steps ---

    def judge(self, session: int, call: Call, ended: Ended, after: Look) -> None:
        """Judge what a step returned and left behind, and make it so.

        Raises:
            Disagreement: it is not allowed.
        """
        self.now += STEP_TAKES
        sight = self.sight(session)
        alone = not self.is_open[1 - session]
        at = Judged(sight, call, ended, after, alone=alone, locked=self._own[1 - session].keys())
        self._judged(call.step, at)
        self.look(session, after)
        if not self.is_open[session]:
            self.end(session, commits=True)

    def judge_abort(self, session: int, call: Call, error: str) -> None:
        """Judge that a step had its transaction fail."""
        if error == "UniqueViolation":
            self._jobs.demand_rival(self.sight(session), call)

    def look(self, session: int, look: Look) -> None:
        """Compare what a session sees with what a store shows it."""
        self.sight(session).compare(look)
        model_jobs.compare(self.sight(session), look)

    def compare(self, rest: Rest) -> None:
        """Compare what is left at the end of a history."""
        ledger.compare(self.sight(0), rest)

    @singledispatchmethod
    def _judged(self, step: s.Step, at: Judged) -> None:
        self._jobs.judge(step, at)

    @_judged.register
    def _(self, step: s.Enqueue, at: Judged) -> None:
        sight = at.sight
        known = {row.id for row in sight.rows()}
        new = [row for row in at.after.rows if row.id not in known]
        if at.ended.error is not None:
            conflicts = [row for row in map(at.same, range(len(step.keys))) if row and row.payload != step.payload]
            demand(at.ended.error == "DedupeConflict" and conflicts, f"{at.ended.error} without reason")
            receipts = [Enqueued(row.id, None, created=True) for row in new]  # type: ignore[arg-type] # not looked at
            keys = [row.key for row in new]
        else:
            receipts = at.ended.result
            keys = list(step.keys)
        demand(len(receipts) == len(keys), "a receipt is missing")
        for place, (key, receipt) in enumerate(zip(keys, receipts, strict=True)):
            self._enqueued(step, at, place, key, receipt)
        demand(sum(each.created for each in receipts) == len(new), "a message too many, or too few")

    def _enqueued(self, step: s.Enqueue, at: Judged, place: int, key: str | None, receipt: Enqueued) -> None:
        same = at.same(place)
        if not receipt.created:
            demand(same is not None and same.id == receipt.id, f"{receipt} is said to be there")
            return
        demand(same is None or at.ended.error, f"{receipt} although there is {same}")
        is_new = receipt.id > at.call.newest and at.sight.row(receipt.id) is None
        demand(is_new, f"{receipt}, although {at.call.newest} was there when it began")
        now = at.sight.now
        number = holders.next_number(at.sight, step.queue, key, counts=at.call.counts)
        row = Row(receipt.id, step.queue, key, number, step.recovery, now, now + micros(step.delay))
        dedupe = None if step.dedupe is None else f"{step.dedupe}{place}"
        at.sight.write(row._replace(dedupe=dedupe, payload=step.payload))

    @_judged.register
    def _(self, step: s.Claim, at: Judged) -> None:
        claims.claim(at.sight, step, at.result, at.after, at.alone)
        ledger.claimed(at.sight, at.result.claimed)

    @_judged.register
    def _(self, step: s.ClaimWithinRate, at: Judged) -> None:
        found, is_short = at.result
        number = ledger.within_rate(at.sight, step, found, is_short, at.alone)
        if number == 0:
            return
        terms = s.Claim(step.worker, step.queue, number, 1, 3, None, park_behind_leased=True)
        claims.claim(at.sight, terms, found, at.after, at.alone)
        ledger.claimed(at.sight, found.claimed)
        ledger.spend(at.sight, step.queue, len(found.claimed))

    @_judged.register
    def _(self, step: s.ClaimSuspects, at: Judged) -> None:
        claims.claim_suspects(at.sight, step, at.result, at.after, at.alone)
        ledger.claimed(at.sight, at.result.claimed)

    @_judged.register
    def _(self, step: s.Reap, at: Judged) -> None:
        claims.reap(at.sight, step, at.result, at.alone)

    @_judged.register
    def _(self, step: s.Heartbeat, at: Judged) -> None:
        at_work = None if at.alone else at.locked
        holders.heartbeat(at.sight, at.call.held, micros(step.lease), at.result, at.after, at_work)

    @_judged.register
    def _(self, step: s.Release, at: Judged) -> None:
        holders.release(at.sight, at.call.held, at.result)
        ledger.cut_off(at.sight, at.call.held, at.result)

    @_judged.register
    def _(self, step: s.Finalize, at: Judged) -> None:
        holders.finalize(at.sight, at.call.decided, at.result, at.after, alone=not at.call.beside)
        ledger.finalized(at.sight, at.call.decided, at.result)

    @_judged.register
    def _(self, step: s.Retry, at: Judged) -> None:
        at.changed_dead(step.rows, Event.OPERATOR_RETRY)

    @_judged.register
    def _(self, step: s.Skip, at: Judged) -> None:
        at.changed_dead(step.rows, Event.OPERATOR_SKIP)
        rows = [row for row_id in chosen(at.call.rows, step.rows) if (row := at.sight.row(row_id))]
        at.sight.promote((row.queue, row.key) for row in rows if row.key is not None)

    @_judged.register
    def _(self, step: s.PromoteStranded, at: Judged) -> None:
        promoted = at.sight.promote(at.sight.heads())
        demand(at.result == (promoted, None), f"{at.result}, not {promoted}")

    @_judged.register
    def _(self, step: s.Pause, at: Judged) -> None:
        before = at.sight.queue(step.queue)
        demand(at.result == (before.paused is not step.paused), f"{at.result} of {before}")
        at.sight.put(("queue", step.queue), before._replace(paused=step.paused))

    @_judged.register
    def _(self, step: s.Change, at: Judged) -> None:
        before = at.sight.queue(step.queue)
        after = before._replace(
            max_attempts=step.max_attempts, sequenced=step.sequenced, every=step.every, ledger=step.ledger
        )
        at.sight.put(("queue", step.queue), after)

    @_judged.register
    def _(self, step: s.Purge, at: Judged) -> None:
        limit = at.sight.now - micros(step.older_than)
        old = [row.id for row in at.sight.rows() if row.status is State.DONE and (row.closed or 0) < limit]
        left = {row.id for row in at.after.rows}
        gone = [row.id for row in at.sight.rows() if row.id not in left]
        demand(len(gone) == at.result.deleted, f"{at.result.deleted} are said to be deleted, not {gone}")
        expected = old[: step.limit]
        demand(gone == expected if at.alone else set(gone) <= set(old), f"{gone} were deleted, not {expected}")
        for row_id in gone:
            at.sight.put(("row", row_id), None)

    @_judged.register
    def _(self, step: s.Stats, at: Judged) -> None:
        rows = at.sight.rows()
        for queue in at.result.queues:
            ours = [row for row in rows if row.queue == queue.queue and row.is_open]
            counts = Counter(row.status for row in ours)
            expired = sum(row.is_expired(at.sight.now) for row in ours)
            expected = [*(counts[each] for each in list(State) if each is not State.DONE), expired]
            found = [queue.pending, queue.processing, queue.blocked, queue.dead, queue.expired]
            demand(found == expected, f"{queue}, not {expected}")
        names = sorted({row.queue for row in rows if row.is_open})
        demand(
            [queue.queue for queue in at.result.queues] == names, "a queue is missing, or there is one too many"
        )
        demand(at.result.done == sum(not row.is_open for row in rows), f"{at.result.done} are said to be done")

    @_judged.register
    def _(self, step: s.Read, at: Judged) -> None:
        """Judge what tells something that the model knows; the stores are compared in everything."""
        sight = at.sight
        rows = [row for row in sight.rows() if row.queue == "q" and row.status is State.DEAD]
        expected = {
            "dead": [row.id for row in rows[:2]],
            "open": any(row.is_open and row.queue == "r" for row in sight.rows()),
            "inbox": sight.get(("inbox", "m")) is not None,
            "number": sight.get(("number", "k")),
        }
        found = {name: at.result[name] for name in expected}
        found["dead"] = [each.message.id for each in found["dead"]]
        demand(found == expected, f"{found}, not {expected}")

    @_judged.register
    def _(self, step: s.Accept, at: Judged) -> None:
        digest = None if step.body is None else sha256(str(step.body).encode()).digest()
        before = at.sight.get(("inbox", step.message))
        if before is None:
            at.sight.put(("inbox", step.message), (step.fence, digest, at.sight.now))
            at.demand_result(Acceptance.ACCEPTED)
        elif None not in (digest, before[1]) and digest != before[1]:
            at.demand_error("MessageConflict")
        else:
            is_stale = None not in (step.fence, before[0]) and (step.fence or 0) < before[0]
            at.demand_result(Acceptance.STALE if is_stale else Acceptance.REPEAT)

    @_judged.register
    def _(self, step: s.AcceptNumber, at: Judged) -> None:
        last = at.sight.get(("number", step.key), 0)
        if step.number <= last:
            at.demand_result(Acceptance.REPEAT)
        elif step.number > last + 1 and not step.allow_gap:
            at.demand_error("SequenceGap")
        else:
            at.sight.put(("number", step.key), step.number)
            at.demand_result(Acceptance.ACCEPTED)

    @_judged.register
    def _(self, step: s.Admit, at: Judged) -> None:
        last, since = at.sight.get(("fence", step.resource), (0, at.sight.now))
        newest = max(step.token, last)
        at.sight.put(("fence", step.resource), (newest, since if newest > step.token else at.sight.now))
        demand((at.result.token, at.result.newest) == (step.token, newest), f"{at.result}, not {newest}")

    @_judged.register
    def _(self, step: s.Forget, at: Judged) -> None:
        before = at.sight.now - micros(step.older_than)
        names = ("m", "n") if step.what == "inbox" else ("f", "g")
        since = {name: found[-1] for name in names if (found := at.sight.get((step.what, name))) is not None}
        old = sorted((name for name in since if since[name] < before), key=lambda name: since[name])
        gone = [name for name in old if (step.what, name) not in at.locked][: step.limit]
        at.demand_result((len(gone), len(gone) < step.limit))
        for name in gone:
            at.sight.put((step.what, name), None)

    @_judged.register
    def _(self, step: j.ReadLedger, at: Judged) -> None:
        messages, jobs = (chosen(rows, step.rows) for rows in (at.call.rows, at.call.job_rows))
        ledger.read(at.sight, messages, jobs, [*at.result["message"], *at.result["job"]])

    @_judged.register
    def _(self, step: j.PurgeLedger, at: Judged) -> None:
        ledger.purge(at.sight, step.older_than, step.limit, at.locked, at.result.deleted)

    @_judged.register
    def _(self, step: s.Break, at: Judged) -> None:
        before = at.sight.queue(step.queue)
        if step.what == "probe":
            self._probed(step, at, before)
            return
        after, result = _broken(before, step.what, at)
        if after != before:  # (what is not written is not held: another session may change it)
            at.sight.put(("queue", step.queue), after)
        demand(at.result == result, f"{step.what} returned {at.result}, not {result}")

    def _probed(self, step: s.Break, at: Judged, before: Queue) -> None:
        found, version = at.result
        is_to_probe = before.opened and not before.paused and before.probe_at <= at.sight.now
        demand((version is not None) == is_to_probe or not at.alone, f"probe {version} of {before}")
        if version is None:
            demand(not found.claimed, "claimed without a probe")
            return
        demand(is_to_probe and version == before.version + 1, f"probe {version} of {before}")
        probe_at = at.sight.now + micros(BREAKER_MINUTES)
        claims.probe(at.sight, step.queue, found, at.after, at.alone)
        ledger.claimed(at.sight, found.claimed)
        after = before._replace(version=version, probe_at=probe_at)
        if not found.claimed:
            after = after._replace(version=version + 1, probe_at=at.sight.now)
        at.sight.put(("queue", step.queue), after)


def _broken(before: Queue, what: str, at: Judged) -> tuple[Queue, bool | None]:
    """Return a breaker after what a worker saw, and what it is told."""
    probe_at = at.sight.now + micros(BREAKER_MINUTES)
    is_ours = before.opened and before.version == at.call.version
    match what:
        case "delivered":
            return before._replace(seen=0), None
        case "failed" if before.opened:
            return before, False
        case "failed" if before.seen + 1 < 2:
            return before._replace(seen=before.seen + 1), False
        case "failed":
            opened = before._replace(opened=True, probe_at=probe_at, trips=0, seen=0)
            return opened._replace(version=before.version + 1), True
        case "close" if is_ours:
            return before._replace(opened=False, trips=0, seen=0, version=before.version + 1), True
        case "reopen" if is_ours:
            again = before._replace(probe_at=probe_at, trips=before.trips + 1)
            return again._replace(version=before.version + 1), True
    return before, False
