"""The fence: what a holder may write, what a stale one may not, and what happens when an answer is lost."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from fencepost import Claimed, ConfigError, Outbox
from fencepost.core.operation import run
from fencepost.core.outcome import Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.states import DEAD_OUTCOMES, DONE_OUTCOMES, Event, Outcome
from fencepost.drivers import driver_for
from fencepost.store import fenced
from fencepost.store.finalize import Decided, Finalized, finalize
from tests.store.rows import (
    FINALIZES,
    OUTBOX,
    WRITES,
    Connection,
    Write,
    add,
    all_rows,
    claim,
    claim_one,
    expire,
    row,
)

each_finalize = pytest.mark.parametrize("finalize", list(FINALIZES.values()), ids=list(FINALIZES))
each_write = pytest.mark.parametrize("write", list(WRITES.values()), ids=list(WRITES))


def taken_over(db: Connection, held: list[Claimed]) -> None:
    """Let another worker claim what one holds."""
    expire(db)
    outbox = Outbox()
    assert sorted(claim_one(db, outbox=outbox, owner="other").id for _ in held) == [each.id for each in held]


def test_stopped_after_the_claim_nothing_is_claimable_until_the_lease_ends(
    db: Connection, db2: Connection
) -> None:
    """The defining scenario: a worker claims and stops; another takes over; the first one wakes up."""
    (row_id,) = add(db)
    old = claim_one(db, owner="old")
    assert claim(db2, owner="new") == []

    expire(db)
    new = claim_one(db2, owner="new")
    assert (new.token, new.attempt) == (old.token + 1, 2)

    before = row(db, row_id)
    assert OUTBOX.mark_done(db, old) == [old]
    assert row(db, row_id).xmin == before.xmin
    assert OUTBOX.mark_done(db2, new) == []
    after = row(db, row_id)
    assert (after.status, after.outcome, after.attempts, after.lease_left) == ("done", "delivered", 2, None)


@each_write
def test_a_stale_token_changes_no_column_and_reports_a_lost_lease(db: Connection, write: Write) -> None:
    add(db, 3)
    old = claim(db)
    taken_over(db, old)
    before = all_rows(db)
    assert write(db, old) == old
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


@each_write
@pytest.mark.parametrize("key", [None, "k"])
def test_another_message_with_the_same_id_and_token_is_left_alone(
    db: Connection, write: Write, key: str | None
) -> None:
    """A failover lost what we hold, with its claim; another message has its id now, and is held by another worker.

    Ids and tokens are those of the lost ones. Were its row closed by our result, that message would be lost too.
    """
    add(db, 3, ordering_key=key)
    old = claim(db)
    db.execute("UPDATE outbox SET message_id = gen_random_uuid(), lease_owner = 'another'")
    before = all_rows(db)
    assert [(each.id, each.token) for each in old] == [(each.id, each.token) for each in before]
    assert write(db, old) == old
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


@each_finalize
def test_what_another_message_came_to_is_not_taken_for_our_own_repeat(db: Connection, finalize: Write) -> None:
    add(db, 3)
    held = claim(db)
    assert finalize(db, held) == []
    db.execute("UPDATE outbox SET message_id = gen_random_uuid()")
    assert finalize(db, held) == held


@each_finalize
def test_an_expired_lease_that_nobody_took_over_still_finalizes(db: Connection, finalize: Write) -> None:
    add(db, 3)
    held = claim(db)
    expire(db)
    assert finalize(db, held) == []
    assert "processing" not in {each.status for each in all_rows(db)}


WAYS_TO_LOSE: dict[str, Write] = {
    "released": FINALIZES["release"],
    "rescheduled": FINALIZES["retry"],
    "dead": FINALIZES["mark_dead"],
    "done": FINALIZES["mark_done"],
}


@each_write
@pytest.mark.parametrize("lose", list(WAYS_TO_LOSE.values()), ids=list(WAYS_TO_LOSE))
def test_the_token_alone_does_not_open_the_fence_once_the_row_was_given_back(
    db: Connection, write: Write, lose: Write
) -> None:
    """The row keeps its token when it is released or retried; a late second write must still bounce."""
    add(db, 2)
    held = claim(db)
    assert lose(db, held) == []
    before = all_rows(db)
    lost = write(db, held)
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]
    # Standing in the very target state counts as this write's own work, whose answer was lost.
    same_target = write is lose or (before[0].status, write) in [
        ("pending", WRITES[name]) for name in ("retry", "defer", "release", "release, attempt kept")
    ]
    assert lost == ([] if same_target else held)


@each_finalize
def test_a_finalize_whose_answer_was_lost_is_repeated_with_success_and_refunds_nothing_twice(
    db: Connection, finalize: Write
) -> None:
    add(db, 4)
    OUTBOX.reschedule(db, claim(db), delay=timedelta(0), error="so that there are attempts to refund")
    held = claim(db)
    assert finalize(db, held) == []
    before = all_rows(db)
    assert finalize(db, held) == []
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]
    assert [each.attempts for each in all_rows(db)] == [each.attempts for each in before]


@each_finalize
def test_half_written_when_the_answer_was_lost(db: Connection, finalize: Write) -> None:
    add(db, 4)
    held = claim(db)
    assert finalize(db, held[:2]) == []
    assert finalize(db, held) == []
    assert len({(each.status, each.outcome, each.attempts) for each in all_rows(db)}) == 1


def test_dead_for_another_reason_is_not_the_same_target(db: Connection) -> None:
    add(db)
    held = claim(db)
    assert OUTBOX.mark_dead(db, held, error="no", outcome="permanent") == []
    before = all_rows(db)
    assert OUTBOX.mark_dead(db, held, error="no", outcome="expired") == held
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


@each_write
def test_a_mix_of_own_and_lost_rows(db: Connection, write: Write) -> None:
    add(db, 6)
    held = claim(db)
    mine, theirs = held[::2], held[1::2]
    expire(db, [each.id for each in theirs])
    outbox = Outbox()
    for _ in theirs:
        claim_one(db, outbox=outbox, owner="other")
    before = {each.id: each for each in all_rows(db)}
    assert write(db, held) == theirs
    after = {each.id: each for each in all_rows(db)}
    assert all(after[each.id].xmin == before[each.id].xmin for each in theirs)
    assert all(after[each.id].xmin != before[each.id].xmin for each in mine)


@each_write
def test_rows_with_different_tokens_in_one_call(db: Connection, write: Write) -> None:
    add(db, 3)
    outbox = Outbox()
    claim(db, outbox=outbox)
    expire(db)
    held = [claim_one(db, outbox=outbox), claim_one(db, outbox=outbox)]
    expire(db, [held[0].id])
    held = [*claim(db, outbox=outbox), *claim(db, outbox=outbox), held[1]]
    assert len({each.token for each in held}) == 2
    assert write(db, held) == []


@each_write
def test_nothing_to_write_is_nothing_lost(db: Connection, write: Write) -> None:
    assert write(db, []) == []


@each_write
def test_rows_that_are_gone_are_lost(db: Connection, write: Write) -> None:
    add(db, 2)
    held = claim(db)
    db.execute("DELETE FROM outbox WHERE id = %s", [held[0].id])
    assert write(db, held) == held[:1]


@each_finalize
def test_a_finalize_rolls_back_with_its_transaction(db: Connection, finalize: Write) -> None:
    add(db, 2)
    held = claim(db)
    with db.transaction(force_rollback=True):
        assert finalize(db, held) == []
    assert {each.status for each in all_rows(db)} == {"processing"}
    assert finalize(db, held) == []


def test_one_message_is_as_good_as_a_list_or_a_generator(db: Connection) -> None:
    add(db, 3)
    one, two, three = claim(db)
    assert OUTBOX.mark_done(db, one) == []
    assert OUTBOX.mark_done(db, (each for each in [two, three])) == []
    assert {each.status for each in all_rows(db)} == {"done"}


def test_a_message_named_twice_is_written_once(db: Connection) -> None:
    add(db)
    (held,) = claim(db)
    assert OUTBOX.reschedule(db, [held, held], delay=timedelta(0), error="x", refund_attempt=True) == []
    assert OUTBOX.mark_done(db, [held, held]) == [held, held]
    assert all_rows(db)[0].attempts == 0


# --- what a finalize writes ------------------------------------------------------------------------------


def test_a_retry_is_due_after_its_delay_and_keeps_the_attempt(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.reschedule(db, claim_one(db), delay=timedelta(seconds=90), error="Timeout: no answer")
    seen = row(db, row_id)
    assert (seen.status, seen.attempts, seen.token, seen.lease_left) == ("pending", 1, 1, None)
    assert seen.last_error == "Timeout: no answer"
    assert 80 < seen.due_in <= 90
    assert claim(db) == []


def test_three_retryable_failures_and_then_the_limit(db: Connection) -> None:
    (row_id,) = add(db)
    for attempt in (1, 2, 3):
        held = claim_one(db, max_attempts=3)
        assert held.attempt == attempt
        OUTBOX.reschedule(db, held, delay=timedelta(0), error=f"failure {attempt}")
        assert row(db, row_id).last_error == f"failure {attempt}"
    assert claim(db, max_attempts=3) == []
    seen = row(db, row_id)
    assert (seen.status, seen.outcome, seen.attempts, seen.last_error) == ("dead", "exhausted", 3, "failure 3")


def test_a_defer_gives_the_attempt_back_and_is_due_later(db: Connection) -> None:
    (row_id,) = add(db)
    for _ in range(5):
        held = claim_one(db, max_attempts=1)
        assert held.attempt == 1
        OUTBOX.reschedule(db, held, delay=timedelta(hours=2), error="not paid yet", refund_attempt=True)
        seen = row(db, row_id)
        assert (seen.status, seen.attempts, seen.last_error) == ("pending", 0, "not paid yet")
        assert 7_100 < seen.due_in <= 7_200
        db.execute("UPDATE outbox SET available_at = statement_timestamp()")
    assert row(db, row_id).token == 5


def test_a_refund_never_goes_below_zero_after_an_operators_reset(db: Connection) -> None:
    """The usual published code: dead, reset by an operator, and then the old worker's defer arrives."""
    (row_id,) = add(db)
    old = claim_one(db)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=1) == 1
    assert OUTBOX.retry_dead(db, [row_id], actor="ann") == [row_id]
    before = row(db, row_id)
    for refund in (True, False):
        assert OUTBOX.reschedule(db, old, delay=timedelta(0), error="late", refund_attempt=refund) == [old]
    assert OUTBOX.release(db, old) == [old]
    after = row(db, row_id)
    assert (after.xmin, after.attempts, after.status) == (before.xmin, 0, "pending")


def test_a_release_is_due_at_once_and_leaves_no_trace_but_the_token(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.release(db, claim_one(db))
    seen = row(db, row_id)
    assert (seen.status, seen.attempts, seen.token, seen.last_error) == ("pending", 0, 1, None)
    assert (seen.lease_left, seen.reclaim_count) == (None, 0)
    again = claim_one(db)
    assert (again.token, again.attempt) == (2, 1)
    OUTBOX.release(db, again, refund_attempt=False)
    assert row(db, row_id).attempts == 1


def test_each_message_of_a_batch_has_its_own_delay_and_error(db: Connection) -> None:
    ids = add(db, 3)
    held = claim(db)
    entries = [
        fenced.Rescheduled(each, timedelta(hours=n), f"error {n}", refund_attempt=n == 2)
        for n, each in enumerate(reversed(held))
    ]
    assert run(fenced.reschedule(OUTBOX.catalog, entries), driver_for(db).execute) == frozenset()
    seen = all_rows(db)
    assert [each.id for each in seen] == ids
    assert [each.last_error for each in seen] == ["error 2", "error 1", "error 0"]
    assert [round(each.due_in / 3600) for each in seen] == [2, 1, 0]
    assert [each.attempts for each in seen] == [0, 1, 1]

    db.execute("UPDATE outbox SET available_at = statement_timestamp()")
    outcomes = [Outcome.PERMANENT, Outcome.UNROUTABLE, Outcome.PERMANENT]
    buried = [
        fenced.Buried(each, outcome, f"dead {n}")
        for n, (each, outcome) in enumerate(zip(claim(db), outcomes, strict=True))
    ]
    assert run(fenced.mark_dead(OUTBOX.catalog, buried), driver_for(db).execute) == frozenset()
    assert [(each.outcome, each.last_error) for each in all_rows(db)] == [
        ("permanent", "dead 0"),
        ("unroutable", "dead 1"),
        ("permanent", "dead 2"),
    ]


@pytest.mark.parametrize("delay", [timedelta(seconds=-5), timedelta.min])
def test_a_negative_delay_means_now(db: Connection, delay: timedelta) -> None:
    add(db)
    OUTBOX.reschedule(db, claim_one(db), delay=delay, error="x")
    assert claim_one(db).attempt == 2


@pytest.mark.parametrize("outcome", sorted(DEAD_OUTCOMES))
def test_every_reason_to_be_dead_can_be_written(db: Connection, outcome: Outcome) -> None:
    (row_id,) = add(db)
    assert OUTBOX.mark_dead(db, claim_one(db), error="why", outcome=outcome) == []
    seen = row(db, row_id)
    assert (seen.status, seen.outcome, seen.last_error, seen.attempts) == ("dead", outcome, "why", 1)
    assert claim(db) == []


@pytest.mark.parametrize("outcome", [*sorted(DONE_OUTCOMES), "nonsense", ""])
def test_what_is_no_reason_to_be_dead_is_refused_before_any_database_work(db: Connection, outcome: str) -> None:
    add(db)
    held = claim_one(db)
    with db.transaction():
        with pytest.raises(ConfigError, match="outcome"):
            OUTBOX.mark_dead(db, held, error="why", outcome=outcome)
        assert OUTBOX.mark_done(db, held) == []


@pytest.mark.parametrize(
    "error", ["", "a\x00b", "\ud800 half", "x" * 1_000_000, "\x00" * 1_000_000, "line\r\nline\t🐘", "%s %(x)s"]
)
def test_writing_a_failure_never_fails_itself(db: Connection, error: str) -> None:
    (row_id,) = add(db)
    assert OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error=error) == []
    assert OUTBOX.mark_dead(db, claim_one(db), error=error) == []
    seen = row(db, row_id)
    assert seen.status == "dead"
    assert seen.last_error is not None
    assert len(seen.last_error) < 20_000
    assert "\x00" not in seen.last_error


def test_a_mixed_batch_is_finalized_in_one_go(db: Connection) -> None:
    add(db, 5)
    held = claim(db)
    expire(db, [held[4].id])
    claim_one(db, owner="other")
    decided: list[Decided] = [
        (held[0], Done()),
        (held[1], Reschedule(Event.RETRY, timedelta(0), "again", refund_attempt=False)),
        (held[2], Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "never")),
        (held[3], Release()),
        (held[4], Done()),
    ]
    assert run(finalize(OUTBOX.catalog, decided), driver_for(db).execute) == Finalized(frozenset([held[4].id]))
    assert [(each.status, each.attempts) for each in all_rows(db)] == [
        ("done", 1),
        ("pending", 1),
        ("dead", 1),
        ("pending", 0),
        ("processing", 2),
    ]


@pytest.mark.parametrize(
    "action",
    [
        Done(),
        Expand(("a", "b")),
        Reschedule(Event.RETRY, timedelta(0), "again", refund_attempt=False),
        Reschedule(Event.DEFER, timedelta(0), "later", refund_attempt=True),
        Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "never"),
        Release(),
    ],
    ids=["done", "expanded", "retried", "deferred", "buried", "released"],
)
def test_a_batch_tells_what_it_lost_whatever_was_decided(db: Connection, action: Action) -> None:
    add(db, 2)
    old = claim(db)
    taken_over(db, old)
    before = all_rows(db)
    with db.transaction():
        found = run(finalize(OUTBOX.catalog, [(each, action) for each in old]), driver_for(db).execute)
    assert found == Finalized(frozenset(each.id for each in old))
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


def test_show_finds_a_message_in_any_state_by_either_id(db: Connection) -> None:
    (row_id,) = add(db)
    held = claim_one(db, owner="ann")
    shown = OUTBOX.show(db, row_id)
    assert shown is not None
    assert (shown.status, shown.lease_owner, shown.token, shown.attempts) == ("processing", "ann", 1, 1)
    assert shown.message == held.message
    assert OUTBOX.show(db, held.message.message_id) == shown
    assert OUTBOX.show(db, row_id + 1) is None
    assert OUTBOX.show(db, uuid4()) is None
