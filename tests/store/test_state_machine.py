"""Random lives on a real database: whatever happens in whatever order, the guarantees hold.

Nothing is predicted. Each step is judged by what it did to the rows: every row that changed must have gone
through a transition that the table allows for that step, and every row that must not change has its old
``xmin``. Hypothesis prints the steps of a failure, shortened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fencepost import Claimed, Outbox
from fencepost.core.states import DEAD_OUTCOMES, TRANSITIONS, Event, Outcome, Recovery, State, attempts_after
from fencepost.embedded import PostgresServer
from tests.store.databases import Migrated, migrated_database
from tests.store.rows import OUTBOX, Connection, Seen, add, all_rows, expire

WORKERS = st.sampled_from(["ann", "bob", "eve"])
LIMITS = st.sampled_from([3, 2, 4])
HIGHEST_LIMIT = 4
SOME = st.one_of(st.just(range(8)), st.lists(st.integers(0, 11), min_size=1, max_size=4))
"""Which of several things, counted from the newest."""

FINISHES = {
    Event.RETRY: State.PENDING,
    Event.CANCELLED: State.PENDING,
    Event.DEFER: State.PENDING,
    Event.RELEASE: State.PENDING,
    Event.DELIVERED: State.DONE,
    Event.PERMANENT_FAILURE: State.DEAD,
    Event.UNROUTABLE: State.DEAD,
    Event.EXHAUST: State.DEAD,
    Event.EXPIRE: State.DEAD,
    Event.UNKNOWN_OUTCOME: State.DEAD,
}


class Lives(RuleBasedStateMachine):
    """Several workers, reapers and operators on one outbox."""

    def __init__(self, migrated: Migrated) -> None:
        super().__init__()
        migrated.empty()
        self.db: Connection = migrated.janitor
        self.outboxes = defaultdict[str, Outbox](Outbox)
        self.claims: list[Claimed] = []
        """All that was ever claimed, by whomever; most of it is stale."""
        self.last_finish: tuple[Event, list[Claimed]] | None = None
        self.tokens: dict[int, int] = {}
        """The highest token ever seen, by row."""
        self.recovery: dict[int, Recovery] = {}

    # --- judging ---

    def judge(self, before: Sequence[Seen], *events: Event) -> dict[int, Event]:
        """Check every row that a step changed, and return what happened to it."""
        happened = {}
        old = {each.id: each for each in before}
        for now in all_rows(self.db):
            was = old.pop(now.id)
            assert was.token <= now.token
            assert 0 <= now.attempts <= HIGHEST_LIMIT
            if now.xmin != was.xmin:
                happened[now.id] = self.event(was, now, events)
            self.tokens[now.id] = max(self.tokens.get(now.id, 0), now.token)
        assert not old, "rows disappeared"
        return happened

    def event(self, was: Seen, now: Seen, allowed: Collection[Event]) -> Event:
        for event in allowed:
            found = TRANSITIONS.get((State(was.status), event))
            if found is not None and (now.status, now.outcome, now.attempts, now.token, now.reclaim_count) == (
                found.to,
                found.outcome,
                attempts_after(was.attempts, found.attempts),
                was.token + found.raises_token,
                # Counted at a takeover, and cleared by an operator's retry.
                {Event.RECLAIM: was.reclaim_count + 1, Event.OPERATOR_RETRY: 0}.get(event, was.reclaim_count),
            ):
                return event
        raise AssertionError(f"no step of {[str(each) for each in allowed]} makes {was} into {now}")

    def some_claims(self, which: Sequence[int]) -> list[Claimed]:
        """Some of what was claimed, at most one claim of each row."""
        chosen: dict[int, Claimed] = {}
        for n in which:
            if n < len(self.claims):
                chosen.setdefault(self.claims[-1 - n].id, self.claims[-1 - n])
        return list(chosen.values())

    # --- producers, time ---

    @initialize(recovery=st.sampled_from(Recovery))
    def begin(self, recovery: Recovery) -> None:
        self.enqueue(3, Recovery.AUTO, "q1")
        self.enqueue(1, recovery, "q2")

    @precondition(lambda self: len(self.recovery) < 8)
    @rule(
        count=st.integers(1, 3),
        recovery=st.sampled_from(Recovery),
        queue=st.sampled_from(["q1", "q2"]),
    )
    def enqueue(self, count: int, recovery: Recovery, queue: str) -> None:
        for row_id in add(self.db, count, recovery=str(recovery), queue=queue):
            self.recovery[row_id] = recovery

    @precondition(lambda self: self.claims)
    @rule(which=SOME)
    def leases_run_out(self, which: Sequence[int]) -> None:
        expire(self.db, [each.id for each in self.some_claims(which)])

    # --- workers ---

    @rule(worker=WORKERS, batch=st.sampled_from([5, 2, 1]), limit=LIMITS)
    def claim(self, worker: str, batch: int, limit: int) -> None:
        self.claims_some(worker, batch, limit)

    @rule(worker=WORKERS, limit=LIMITS)
    def claim_when_all_backoffs_are_over(self, worker: str, limit: int) -> None:
        self.db.execute("UPDATE outbox SET available_at = statement_timestamp() WHERE status = 'pending'")
        self.claims_some(worker, 3, limit)

    @precondition(lambda self: self.claims)
    @rule(worker=WORKERS, limit=LIMITS)
    def claim_when_everybody_has_crashed(self, worker: str, limit: int) -> None:
        expire(self.db)
        self.claims_some(worker, 3, limit)

    def claims_some(self, worker: str, batch: int, limit: int) -> None:
        before = {each.id: each for each in all_rows(self.db)}
        claimed = self.outboxes[worker].claim(self.db, owner=worker, batch=batch, max_attempts=limit)
        happened = self.judge([*before.values()], Event.CLAIM, Event.RECLAIM, Event.CLAIM_OVER_LIMIT)
        taken = {row_id for row_id, event in happened.items() if event is not Event.CLAIM_OVER_LIMIT}
        assert {each.id for each in claimed} == taken
        assert len(claimed) <= batch
        for each in claimed:
            was = before[each.id]
            assert was.due_in <= 0
            assert each.attempt == was.attempts + 1 <= limit
            # I9: a token like it was never seen, and nobody's lease was running.
            assert each.token == was.token + 1
            assert was.lease_left is None or was.lease_left < 0
            if was.status == State.PROCESSING:
                assert self.recovery[each.id] is not Recovery.MANUAL
            # What may have arrived is asked about, unless a person has decided since.
            if self.recovery[each.id] is Recovery.VERIFY and was.reclaim_count + (was.status == State.PROCESSING):
                assert each.is_to_verify
            if each.reclaim_count:
                assert len(claimed) == 1
        self.claims += claimed

    @precondition(lambda self: self.claims)
    @rule(which=SOME)
    def heartbeat(self, which: Sequence[int]) -> None:
        chosen = self.some_claims(which)
        before = {each.id: each for each in all_rows(self.db)}
        lost = {each.id for each in OUTBOX.heartbeat(self.db, chosen)}
        after = {each.id: each for each in all_rows(self.db)}
        for each in chosen:
            mine = before[each.id].status == State.PROCESSING and before[each.id].token == each.token
            assert (each.id in lost) is not mine
            assert (after[each.id].lease_left or 0) > 50 or not mine
        changed = {row_id for row_id in after if after[row_id].xmin != before[row_id].xmin}
        assert changed == {each.id for each in chosen} - lost

    @precondition(lambda self: self.claims)
    @rule(which=SOME, event=st.sampled_from(list(FINISHES)))
    def finish(self, which: Sequence[int], event: Event) -> None:
        self.finishes(which, event)

    @precondition(lambda self: self.claims)
    @rule(which=SOME, event=st.sampled_from([Event.RELEASE, Event.RETRY, Event.DEFER, Event.EXHAUST]))
    def fail(self, which: Sequence[int], event: Event) -> None:
        self.finishes(which, event)

    def finishes(self, which: Sequence[int], event: Event) -> None:
        chosen = self.some_claims(which)
        before = {each.id: each for each in all_rows(self.db)}
        lost = {each.id for each in self.write(event, chosen)}
        happened = self.judge([*before.values()], event)
        outcome = TRANSITIONS[State.PROCESSING, event].outcome
        for each in chosen:
            was = before[each.id]
            mine = was.status == State.PROCESSING and was.token == each.token
            # I2: a stale token changes nothing, and says so.
            assert (each.id in happened) is mine
            same_target = (was.status, was.outcome, was.token) == (FINISHES[event], outcome, each.token)
            assert (each.id in lost) is not (mine or same_target)
        assert set(happened) <= {each.id for each in chosen}
        self.last_finish = (event, chosen)

    @precondition(lambda self: self.last_finish is not None)
    @rule()
    def finish_again_as_the_answer_was_lost(self) -> None:
        assert self.last_finish is not None
        event, chosen = self.last_finish
        before = all_rows(self.db)
        alive = {each.id for each in before if each.status == State.PROCESSING}
        self.write(event, chosen)
        happened = self.judge(before, event)
        # Only a row that was claimed with this very token in between could change: there is none.
        assert set(happened) <= alive

    def write(self, event: Event, chosen: list[Claimed]) -> list[Claimed]:
        outcome = TRANSITIONS[State.PROCESSING, event].outcome
        match event:
            case Event.DELIVERED:
                return OUTBOX.mark_done(self.db, chosen)
            case Event.RELEASE:
                return OUTBOX.release(self.db, chosen)
            case Event.CANCELLED:
                return OUTBOX.release(self.db, chosen, refund_attempt=False)
            case Event.RETRY | Event.DEFER:
                delay = timedelta(minutes=1)
                refund = event is Event.DEFER
                return OUTBOX.reschedule(self.db, chosen, delay=delay, error="x", refund_attempt=refund)
            case _:
                assert outcome in DEAD_OUTCOMES
                return OUTBOX.mark_dead(self.db, chosen, error="x", outcome=str(outcome))

    # --- the reaper, operators ---

    @precondition(lambda self: self.claims)
    @rule(limit=LIMITS)
    def reap(self, limit: int) -> None:
        before = {each.id: each for each in all_rows(self.db)}
        count = OUTBOX.reap(self.db, max_attempts=limit)
        happened = self.judge([*before.values()], Event.REAP_CRASHED, Event.REAP_UNKNOWN)
        assert count == len(happened)
        for row_id, was in before.items():
            expired = was.lease_left is not None and was.lease_left < 0
            manual = self.recovery[row_id] is Recovery.MANUAL
            assert (row_id in happened) is (expired and (manual or was.attempts >= limit))
            if row_id in happened:
                known = self.recovery[row_id] is Recovery.AUTO
                assert (happened[row_id] is Event.REAP_CRASHED) is known

    @precondition(lambda self: self.claims)
    @rule(which=SOME, event=st.sampled_from([Event.OPERATOR_RETRY, Event.OPERATOR_SKIP]))
    def operate(self, which: Sequence[int], event: Event) -> None:
        before = all_rows(self.db)
        ids = [each.id for each in self.some_claims(which)]
        audited = self.audited()
        act = OUTBOX.retry_dead if event is Event.OPERATOR_RETRY else OUTBOX.skip_dead
        moved = act(self.db, ids, actor="ann")
        happened = self.judge(before, event)
        assert sorted(happened) == moved
        assert set(moved) == {each.id for each in before if each.status == State.DEAD and each.id in ids}
        assert self.audited() == audited + len(moved)

    def audited(self) -> int:
        found = self.db.execute("SELECT count(*) FROM outbox_audit").fetchone()
        assert found is not None
        return int(found[0])

    def teardown(self) -> None:
        """Every message can still be brought to an end: none is stuck."""
        if not self.recovery:
            return
        expire(self.db)
        self.db.execute("UPDATE outbox SET available_at = statement_timestamp() WHERE status = 'pending'")
        worker = Outbox()
        for _ in range(200):
            OUTBOX.reap(self.db, max_attempts=HIGHEST_LIMIT)
            claimed = worker.claim(self.db, owner="last", max_attempts=HIGHEST_LIMIT)
            assert OUTBOX.mark_done(self.db, claimed) == []
            if not claimed:
                break
        rows = all_rows(self.db)
        assert {each.status for each in rows} <= {State.DONE, State.DEAD}
        assert {each.id for each in rows} == set(self.recovery)
        assert {each.outcome for each in rows} <= set(Outcome)


@pytest.fixture
def migrated18(postgres18: PostgresServer) -> Iterator[Migrated]:
    with migrated_database(postgres18) as found:
        yield found


@pytest.mark.timeout(300)
def test_random_lives(migrated18: Migrated) -> None:
    class LivesHere(Lives):
        def __init__(self) -> None:
            super().__init__(migrated18)

    run_state_machine_as_test(
        LivesHere,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_the_judge_sees_a_write_behind_the_fence(migrated18: Migrated) -> None:
    """A planted fault: a finalize that compares the token alone."""
    lives = Lives(migrated18)
    lives.enqueue(1, Recovery.AUTO, "q1")
    lives.claims_some("ann", 1, 3)
    lives.finish([0], Event.RELEASE)
    before = all_rows(lives.db)
    with psycopg.connect(migrated18.url) as faulty:
        faulty.execute(
            "UPDATE outbox SET status = 'done', outcome = 'delivered', done_at = now() WHERE lease_version = 1"
        )
    with pytest.raises(AssertionError, match="no step of"):
        lives.judge(before, Event.DELIVERED)
    lives.recovery.clear()
