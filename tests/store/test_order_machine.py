"""Random lives of ordered messages on a real database, on several keys at once.

Nothing is predicted: each step is judged by what it did to the rows, against the table of transitions and against
what ordering promises. At the end everything can be brought to its end, and every key was closed in id order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fencepost import Claimed
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.core.states import TRANSITIONS, Event, Outcome, State, attempts_after
from fencepost.embedded import PostgresServer
from fencepost.store import outbox as store
from fencepost.store.finalize import finalize
from tests.store.databases import Migrated, migrated_database
from tests.store.ordered import CATALOG, do
from tests.store.rows import LEASE, OUTBOX, Connection, Seen, add, all_rows, expire

KEYS = st.sampled_from(["a", "b", "c", None])
LIMIT = 4
SOME = st.one_of(st.just(range(8)), st.lists(st.integers(0, 11), min_size=1, max_size=4))
"""Which of several things, counted from the newest."""

RETRY = Reschedule(Event.RETRY, timedelta(minutes=1), "x", refund_attempt=False)
DEFER = Reschedule(Event.DEFER, timedelta(minutes=1), "x", refund_attempt=True)
BURY = Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "x")
ACTIONS = st.sampled_from([Done(), Done(), Done(), RETRY, DEFER, BURY, Release()])

HOLDERS = (Event.DELIVERED, Event.RETRY, Event.DEFER, Event.PERMANENT_FAILURE, Event.RELEASE, Event.CANCELLED)


class OrderedLives(RuleBasedStateMachine):
    """Workers that crash, lag and give back, and an operator, on three keys and some unordered messages."""

    def __init__(self, migrated: Migrated) -> None:
        super().__init__()
        migrated.empty()
        self.db: Connection = migrated.janitor
        self.keys: dict[int, str | None] = {}
        self.claims: list[Claimed] = []
        """All that was ever claimed; most of it is stale."""

    # --- judging ---

    def look(self) -> dict[int, Seen]:
        return {each.id: each for each in all_rows(self.db)}

    def judge(self, before: dict[int, Seen], allowed: Collection[Event]) -> dict[int, Event]:
        """Check what a step did, and return what happened to each row that it changed."""
        after = self.look()
        assert after.keys() == before.keys()
        happened = {
            row_id: self.event(was, after[row_id], allowed)
            for row_id, was in before.items()
            if was.xmin != after[row_id].xmin
        }
        self.check_order(after)
        return happened

    def event(self, was: Seen, now: Seen, allowed: Collection[Event]) -> Event:
        for event in allowed:
            found = TRANSITIONS.get((State(was.status), event))
            if found is not None and (now.status, now.outcome, now.attempts, now.token) == (
                found.to,
                found.outcome,
                attempts_after(was.attempts, found.attempts),
                was.token + found.raises_token,
            ):
                return event
        raise AssertionError(f"no step of {[str(each) for each in allowed]} makes {was} into {now}")

    def check_order(self, rows: dict[int, Seen]) -> None:
        for key in {key for key in self.keys.values() if key is not None}:
            of_key = [rows[row_id] for row_id in sorted(rows) if self.keys[row_id] == key]
            # Closed in id order; a skip may come before its turn, as a person decided it.
            delivered = [each.id for each in of_key if each.outcome == Outcome.DELIVERED]
            open_rows = [each for each in of_key if each.status != State.DONE]
            assert not open_rows or all(row_id < open_rows[0].id for row_id in delivered)
            # Nothing sleeps at the head of its key: there is something open before whatever is parked.
            assert not open_rows or open_rows[0].status != State.BLOCKED
            assert all(self.keys[each.id] is not None for each in of_key if each.status == State.BLOCKED)

    # --- producers, time ---

    @initialize()
    def begin(self) -> None:
        self.enqueue("a", 3)
        self.enqueue("b", 2)

    @precondition(lambda self: len(self.keys) < 12)
    @rule(key=KEYS, count=st.integers(1, 3))
    def enqueue(self, key: str | None, count: int) -> None:
        for row_id in add(self.db, count, ordering_key=key):
            self.keys[row_id] = key

    @precondition(lambda self: self.claims)
    @rule(which=SOME)
    def leases_run_out(self, which: Sequence[int]) -> None:
        expire(self.db, [each.id for each in self.some_claims(which)])

    @rule()
    def backoffs_are_over(self) -> None:
        self.db.execute("UPDATE outbox SET available_at = statement_timestamp() WHERE status = 'pending'")

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 11))
    def one_was_tried_often(self, which: int) -> None:
        """So that a claim under the lower limit meets it over that."""
        row_id = sorted(self.keys)[which % len(self.keys)]
        self.db.execute("UPDATE outbox SET attempts = 3 WHERE id = %s AND status = 'pending'", [row_id])

    def some_claims(self, which: Sequence[int]) -> list[Claimed]:
        """Some of what was claimed, at most one claim of each row."""
        chosen: dict[int, Claimed] = {}
        for n in which:
            if n < len(self.claims):
                chosen.setdefault(self.claims[-1 - n].id, self.claims[-1 - n])
        return list(chosen.values())

    # --- workers ---

    @rule(
        batch=st.sampled_from([20, 5, 3, 2, 1]),
        limit=st.sampled_from([LIMIT, LIMIT, 2]),
        park=st.booleans(),
        longest=st.sampled_from([None, 1, 2]),
    )
    def claim(self, batch: int, limit: int, park: bool, longest: int | None) -> None:
        before = self.look()
        terms = store.ClaimTerms("w", LEASE, limit)
        scan = store.Scan(park_behind_leased=park, longest_run=longest)
        found = do(self.db, store.claim(CATALOG, terms, queues=["default"], batch=batch, scan=scan))
        happened = self.judge(before, (Event.CLAIM, Event.CLAIM_OVER_LIMIT, Event.PARK))
        self.came_in_turn(before, found.claimed, happened)
        assert len(found.claimed) <= batch
        assert found.exhausted == [*happened.values()].count(Event.CLAIM_OVER_LIMIT)
        assert found.parked == [*happened.values()].count(Event.PARK)
        for key in set(self.keys.values()) - {None}:
            taken = [each for each in found.claimed if each.message.ordering_key == key]
            assert longest is None or len(taken) <= longest
        for row_id, event in happened.items():
            if event is Event.PARK:
                head = self.head(before, row_id)
                assert head.id < row_id
                assert park or head.lease_left is None or head.lease_left < 0

    @rule(batch=st.sampled_from([1, 3, 9]))
    def claim_suspects(self, batch: int) -> None:
        before = self.look()
        terms = store.ClaimTerms("w", LEASE, LIMIT)
        found = do(self.db, store.claim_suspects(CATALOG, terms, queues=["default"], batch=batch))
        happened = self.judge(before, (Event.RECLAIM, Event.CLAIM, Event.CLAIM_OVER_LIMIT))
        self.came_in_turn(before, found.claimed, happened)
        for each in found.claimed:
            assert self.keys[each.id] is None or self.head(before, each.id).id == each.id

    def came_in_turn(
        self, before: dict[int, Seen], claimed: Sequence[Claimed], happened: dict[int, Event]
    ) -> None:
        taking = {Event.CLAIM, Event.RECLAIM}
        assert {row_id for row_id, event in happened.items() if event in taking} == {each.id for each in claimed}
        moved = {row_id for row_id, event in happened.items() if event is not Event.PARK}
        for row_id in moved:
            if self.keys[row_id] is not None:
                # A run: whatever was open before it in its key was taken with it, and nothing was left out.
                earlier = [
                    each.id
                    for each in before.values()
                    if self.keys[each.id] == self.keys[row_id] and each.id < row_id and each.status != State.DONE
                ]
                assert set(earlier) <= moved
                dead = {each for each in earlier if happened[each] is Event.CLAIM_OVER_LIMIT}
                assert not dead
        self.claims += claimed

    def head(self, rows: dict[int, Seen], row_id: int) -> Seen:
        """The first open row of its key."""
        return next(
            rows[each]
            for each in sorted(rows)
            if self.keys[each] == self.keys[row_id] and rows[each].status != State.DONE
        )

    @precondition(lambda self: self.claims)
    @rule(which=SOME, actions=st.lists(ACTIONS, min_size=12, max_size=12))
    def finish(self, which: Sequence[int], actions: Sequence[Action]) -> None:
        self.finishes(list(zip(self.some_claims(which), actions, strict=False)))

    @precondition(lambda self: self.claims)
    @rule(which=SOME)
    def deliver(self, which: Sequence[int]) -> None:
        self.finishes([(each, Done()) for each in self.some_claims(which)])

    def finishes(self, decided: list[tuple[Claimed, Action]]) -> None:
        before = self.look()
        result = do(self.db, finalize(CATALOG, decided))
        happened = self.judge(before, (*HOLDERS, Event.PROMOTE))
        assert result.promoted == [*happened.values()].count(Event.PROMOTE)
        written = {row_id for row_id, event in happened.items() if event is not Event.PROMOTE}
        assert written <= {claimed.id for claimed, _ in decided}
        for claimed, action in decided:
            was = before[claimed.id]
            mine = was.status == State.PROCESSING and was.token == claimed.token
            assert mine or claimed.id not in written
            if mine:
                assert claimed.id in written
                # Delivered out of its turn, it goes back.
                out_of_turn = isinstance(action, Done) and self.look()[claimed.id].status != State.DONE
                assert (claimed.id in result.out_of_turn) is out_of_turn
                assert claimed.id not in result.lost
        # Repeated, as where its answer was lost, it changes nothing.
        before = self.look()
        repeated = [(each, action) for each, action in decided if isinstance(action, Done)]
        assert do(self.db, finalize(CATALOG, repeated)).lost <= result.lost | result.out_of_turn
        assert self.judge(before, ()) == {}

    # --- the reaper, operators ---

    @rule(limit=st.sampled_from([LIMIT, 2]))
    def reap(self, limit: int) -> None:
        before = self.look()
        OUTBOX.reap(self.db, max_attempts=limit)
        self.judge(before, (Event.REAP_CRASHED,))

    @precondition(lambda self: self.claims)
    @rule(which=SOME, event=st.sampled_from([Event.OPERATOR_RETRY, Event.OPERATOR_SKIP]))
    def operate(self, which: Sequence[int], event: Event) -> None:
        before = self.look()
        chosen = [each.id for each in self.some_claims(which)]
        act = OUTBOX.retry_dead if event is Event.OPERATOR_RETRY else OUTBOX.skip_dead
        with self.db.transaction():
            act(self.db, chosen, actor="ann")
        happened = self.judge(before, (event, Event.PROMOTE))
        dead = {row_id for row_id in chosen if before[row_id].status == State.DEAD}
        assert {row_id for row_id, found in happened.items() if found is event} == dead

    def teardown(self) -> None:
        """Everything can be drained, and is, whoever held it and whatever was parked."""
        if not self.keys:
            return
        terms = store.ClaimTerms("last", LEASE, LIMIT)
        for _ in range(300):
            rows = self.look()
            if all(each.status == State.DONE for each in rows.values()):
                return
            expire(self.db)
            self.backoffs_are_over()
            OUTBOX.reap(self.db, max_attempts=LIMIT)
            dead = [each.id for each in self.look().values() if each.status == State.DEAD]
            with self.db.transaction():
                OUTBOX.skip_dead(self.db, dead, actor="ann")
            held = do(self.db, store.claim(CATALOG, terms, queues=["default"], batch=3)).claimed
            held = held or do(self.db, store.claim_suspects(CATALOG, terms, queues=["default"])).claimed
            with self.db.transaction():
                assert OUTBOX.mark_done(self.db, held) == []
            self.check_order(self.look())
        raise AssertionError(
            f"left behind: {[each for each in self.look().values() if each.status != State.DONE]}"
        )


@pytest.fixture
def migrated18(postgres18: PostgresServer) -> Iterator[Migrated]:
    with migrated_database(postgres18) as found:
        yield found


@pytest.mark.timeout(300)
def test_random_lives_of_ordered_messages(migrated18: Migrated) -> None:
    class LivesHere(OrderedLives):
        def __init__(self) -> None:
            super().__init__(migrated18)

    run_state_machine_as_test(
        LivesHere,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_the_judge_sees_a_message_that_sleeps(migrated18: Migrated) -> None:
    """A planted fault: the head is closed, and nobody looks for parked ones."""
    lives = OrderedLives(migrated18)
    lives.enqueue("a", 2)
    lives.claim(1, LIMIT, True, None)
    lives.claim(1, LIMIT, True, None)
    before = lives.look()
    lives.db.execute(
        "UPDATE outbox SET status = 'done', outcome = 'delivered', done_at = now(), lease_until = NULL"
        " WHERE status = 'processing'"
    )
    with pytest.raises(AssertionError):
        lives.judge(before, HOLDERS)


def test_the_judge_sees_one_that_overtakes(migrated18: Migrated) -> None:
    lives = OrderedLives(migrated18)
    lives.enqueue("a", 2)
    lives.claim(2, LIMIT, True, None)
    before = lives.look()
    lives.db.execute(
        "UPDATE outbox SET status = 'done', outcome = 'delivered', done_at = now(), lease_until = NULL"
        " WHERE id = (SELECT max(id) FROM outbox)"
    )
    with pytest.raises(AssertionError):
        lives.judge(before, HOLDERS)
