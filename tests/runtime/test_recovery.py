"""What becomes of messages of which nobody knows whether they arrived: recovery by verify, by hand, by itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Delivery, Gone, Message, Permanent, Retryable, Verdict
from fencepost.runtime.held import OVERDUE_SECONDS, Stage
from tests.runtime.box import Box, Stubborn, running, until
from tests.runtime.journal import SHORT, Journal, hangs

Answer = Verdict | BaseException | Callable[[], Any] | Any


class Verifying(Journal):
    """A journal whose verify answers by script, and by what was accepted where the script is over."""

    def __init__(self, *answers: Answer, **script: Any) -> None:
        super().__init__(**script)
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []
        """Message and attempt."""

    async def verify(self, message: Message, delivery: Delivery) -> Any:
        self.asked.append((message.id, delivery.attempt))
        if not self.answers:
            return Verdict.DONE if message.id in self.accepted else Verdict.NOT_DONE
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return await answer() if callable(answer) else answer


def lost_answer(journal: Journal) -> Callable[[Message, Delivery], Any]:
    """Return a step after which the receiver has it, and whose acknowledgement never comes."""

    async def step(message: Message, delivery: Delivery) -> None:
        journal.accepted.append(message.id)
        await asyncio.Event().wait()

    return step


async def run_until_closed(box: Box, publisher: Any, **options: Any) -> Any:
    options = {"publish_timeout": SHORT, **options}
    dispatcher = box.dispatcher(publisher, **options)
    async with running(dispatcher):
        await until(lambda: not {"pending", "processing", "blocked"} & set(box.statuses()), "all closed")
    return dispatcher.counters


async def test_a_publish_whose_answer_was_lost_is_verified_and_not_repeated(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying()
    journal.script = {row_id: [lost_answer(journal)]}
    counters = await run_until_closed(box, journal)
    assert (journal.started, journal.asked) == ([row_id], [(row_id, 2)])
    row = box.row(row_id)
    assert (row["outcome"], row["attempts"]) == ("delivered", 2)
    assert (counters.delivered, counters.verified, counters.timed_out) == (1, 1, 1)


async def test_what_did_not_arrive_is_published_in_the_attempt_that_asked(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying(script={row_id: [hangs]})
    counters = await run_until_closed(box, journal)
    assert journal.asked == [(row_id, 2)]
    assert journal.attempts == {row_id: [1, 2]}
    assert journal.accepted == [row_id]
    assert (counters.delivered, counters.verified) == (1, 0)


async def test_where_nobody_can_tell_it_is_left_to_a_person_whose_retry_is_not_asked_about(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying(Verdict.UNKNOWN, script={row_id: [hangs]})
    await run_until_closed(box, journal)
    row = box.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == ("dead", "unknown_outcome", 2)
    assert "nobody can tell" in row["last_error"]
    assert journal.started == [row_id]
    box.outbox.retry_dead(box.conn, [row_id], actor="ann")
    await run_until_closed(box, journal)
    assert box.row(row_id)["outcome"] == "delivered"
    assert journal.asked == [(row_id, 2)]


async def test_the_first_attempt_and_other_policies_are_never_asked_about(box: Box) -> None:
    auto = box.enqueue(2)
    verify = box.enqueue(2, recovery="verify")
    journal = Verifying(script={auto[0]: [hangs]})
    await run_until_closed(box, journal)
    assert journal.asked == []
    assert sorted(journal.accepted) == [*auto, *verify]


async def test_what_was_given_back_unstarted_or_deferred_is_not_asked_about(box: Box) -> None:
    released, deferred = box.enqueue(2, recovery="verify")
    claimed = box.outbox.claim(box.conn, "other", batch=1)
    box.outbox.release(box.conn, claimed)
    journal = Verifying(script={deferred: [Defer(timedelta(0), "not yet")]})
    await run_until_closed(box, journal)
    assert journal.asked == []
    assert box.row(released)["lease_version"] == 2
    assert sorted(journal.accepted) == [released, deferred]


async def test_by_hand_it_is_left_to_a_person_at_once(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="manual")
    journal = Verifying(script={row_id: [hangs]})
    await run_until_closed(box, journal)
    assert (journal.started, journal.asked) == ([row_id], [])
    assert box.row(row_id)["outcome"] == "unknown_outcome"


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Retryable("cannot be asked"), "verify: cannot be asked"),
        (ValueError("a bug"), "verify: ValueError: a bug"),
        (never, "verify: no answer within 0.2 s"),
        (True, "verify: TypeError: verify must return Verdict.DONE"),
        (None, "verify: TypeError: verify must return Verdict.DONE"),
        ("finished", "not 'finished'"),
    ],
    ids=["retryable", "unexpected", "hangs", "true", "none", "text"],
)
async def test_a_verify_that_fails_publishes_nothing_and_is_retried(box: Box, answer: Answer, says: str) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying(answer, answer)
    journal.script = {row_id: [lost_answer(journal)]}
    errors = []

    async def third() -> Verdict:
        errors.append(box.row(row_id)["last_error"])
        return Verdict.DONE

    journal.answers.append(third)
    await run_until_closed(box, journal)
    assert journal.started == [row_id]
    assert [attempt for _, attempt in journal.asked] == [2, 3, 4]
    assert says in errors[0]
    assert box.row(row_id)["outcome"] == "delivered"


async def test_at_the_limit_of_attempts_what_could_not_be_verified_is_left_to_a_person(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying(*[Retryable("cannot be asked")] * 9, script={row_id: [hangs]})
    await run_until_closed(box, journal, max_attempts=3)
    row = box.row(row_id)
    assert (row["outcome"], row["attempts"], row["last_error"]) == (
        "unknown_outcome",
        3,
        "verify: cannot be asked",
    )
    assert journal.started == [row_id]


async def test_a_verify_that_is_refused_for_good_is_left_to_a_person(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    await run_until_closed(box, Verifying(Permanent("no such order"), script={row_id: [hangs]}))
    row = box.row(row_id)
    assert (row["outcome"], row["last_error"]) == ("unknown_outcome", "verify: no such order")


async def test_a_verify_that_defers_is_asked_again_later(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    journal = Verifying(Defer(timedelta(0), "settling"), script={row_id: [hangs]})
    await run_until_closed(box, journal)
    assert journal.asked == [(row_id, 2), (row_id, 2)]
    assert journal.accepted == [row_id]


async def test_a_destination_that_is_gone_when_asked_pauses_its_queue(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify", queue="hook")
    journal = Verifying(*[Gone("no more")] * 50, script={row_id: [hangs]})
    dispatcher = box.dispatcher([], destinations={"hook": journal}, publish_timeout=SHORT)
    async with running(dispatcher):
        await until(lambda: any(each.paused for each in box.outbox.queues(box.conn)), "paused")
    assert box.row(row_id)["status"] == "pending"
    assert journal.started == [row_id]


async def test_a_publisher_that_cannot_verify_leaves_it_to_a_person_and_says_what_to_do(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    started = []

    async def publish(message: Message) -> None:
        started.append(message.id)
        await asyncio.Event().wait()

    await run_until_closed(box, publish)
    row = box.row(row_id)
    assert row["outcome"] == "unknown_outcome"
    assert "publish has no verify()" in row["last_error"]
    assert "dead retry" in row["last_error"]
    assert started == [row_id]


async def test_plain_functions_verify_in_threads_also_as_an_attribute(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    seen: list[str] = []
    asked = threading.Event()

    def publish(message: Message) -> None:
        seen.append("publish")
        asked.wait(30)  # past its time-out: a thread cannot be stopped

    def verify(message: Message) -> str:
        seen.append("verify")
        asked.set()
        return "done"

    publish.verify = verify  # type: ignore[attr-defined]  # functions take attributes
    await run_until_closed(box, publish)
    assert seen == ["publish", "verify"]
    assert box.row(row_id)["outcome"] == "delivered"


async def test_a_verify_that_ignores_its_time_out_and_then_says_not_done_publishes_nothing(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")

    async def stubborn() -> Verdict:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Verdict.NOT_DONE

    async def more_stubborn() -> Verdict:
        deadline = time.monotonic() + OVERDUE_SECONDS + 0.7  # given up on by then
        while time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        ended.append(True)
        return Verdict.NOT_DONE

    ended: list[bool] = []
    journal = Verifying(stubborn, more_stubborn, Verdict.DONE, Verdict.DONE)
    journal.script = {row_id: [lost_answer(journal)]}
    dispatcher = box.dispatcher(journal, publish_timeout=SHORT, lease=timedelta(seconds=4))
    async with running(dispatcher):
        await until(lambda: box.row(row_id)["status"] == "done" and ended, "done, and the verify over")
    assert journal.started == [row_id]


async def test_a_verify_that_ignores_a_cut_off_and_then_says_not_done_publishes_nothing(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    stubborn, asked = Stubborn(), asyncio.Event()
    ended = False

    async def verify() -> Verdict:
        nonlocal ended
        asked.set()
        await stubborn.wait()
        ended = True
        return Verdict.NOT_DONE

    journal = Verifying(verify)
    journal.script = {row_id: [lost_answer(journal)]}
    # (Longer than a cut-off is patient: it must not be a time-out that ends the verify.)
    dispatcher = box.dispatcher(journal, publish_timeout=timedelta(seconds=1), grace=timedelta(0))
    async with dispatcher:
        with stubborn:
            task = asyncio.create_task(dispatcher.run(handle_signals=False))
            async with asyncio.timeout(30):
                await asked.wait()
            dispatcher.stop()
            assert await task is False
        await until(lambda: ended)
        for _ in range(5):
            await asyncio.sleep(0)  # steps of the loop, in which it would go on
    assert journal.started == [row_id]


async def test_verify_and_publish_share_the_publish_time_out(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    times: list[float] = []

    async def slow() -> Verdict:
        times.append(time.monotonic())
        await asyncio.sleep(0.6)  # work, not a wait for something
        return Verdict.NOT_DONE

    journal = Verifying(slow, Verdict.DONE, script={row_id: [hangs, hangs]})

    async def second(message: Message, delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            times.append(time.monotonic())

    journal.script[row_id][1] = second
    await run_until_closed(box, journal, publish_timeout=timedelta(seconds=1))
    began, ended = times
    assert 0.9 < ended - began < 1.5


async def test_in_batches_what_is_to_be_verified_goes_alone_and_the_others_together(box: Box) -> None:
    class Bulk:
        def __init__(self) -> None:
            self.batches: list[list[int]] = []
            self.asked: list[int] = []

        async def publish_batch(self, messages: list[Message], deliveries: list[Delivery]) -> list[None]:
            self.batches.append([message.id for message in messages])
            if len(self.batches) == 1:
                await asyncio.Event().wait()
            return [None] * len(messages)

        async def verify(self, message: Message) -> Verdict:
            self.asked.append(message.id)
            return Verdict.DONE if message.id % 2 else Verdict.NOT_DONE

    verify = box.enqueue(4, recovery="verify")
    bulk = Bulk()
    async with box.dispatcher(bulk, publish_timeout=SHORT) as dispatcher:
        await dispatcher.dispatch_once()
        due = "SELECT count(*) FROM outbox WHERE status = 'pending' AND available_at <= now()"
        await until(lambda: box.conn.execute(due).fetchone() == (4,), "the end of the backoff")
        auto = box.enqueue(3)
        await dispatcher.dispatch_once()
    assert sorted(bulk.asked) == verify
    assert bulk.batches[0] == verify
    missing = [row_id for row_id in verify if row_id % 2 == 0]
    assert sorted(bulk.batches[1:]) == sorted([auto, *([row_id] for row_id in missing)])
    assert box.statuses() == {"done": 7}


async def test_of_an_ordering_key_what_was_verified_lets_the_next_one_go(box: Box) -> None:
    first, second = box.enqueue(2, recovery="verify", ordering_key="k")
    journal = Verifying()
    journal.script = {first: [lost_answer(journal)]}
    await run_until_closed(box, journal)
    assert journal.asked == [(first, 2)]
    assert journal.started == [first, second]
    assert box.statuses() == {"done": 2}


async def test_a_lease_lost_while_it_is_asked_publishes_nothing(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="verify")
    claimed = box.outbox.claim(box.conn, "other")
    box.outbox.reschedule(box.conn, claimed, timedelta(0), "no answer")

    async def lost() -> Verdict:
        box.conn.execute("UPDATE outbox SET lease_version = lease_version + 1")
        await until(lambda: dispatcher._held.in_stage(Stage.PUBLISHING)[0].lost, "the loss is told")
        return Verdict.NOT_DONE

    journal = Verifying(lost)
    dispatcher = box.dispatcher(journal, heartbeat=timedelta(milliseconds=50))
    async with dispatcher:
        await dispatcher.dispatch_once()
    assert journal.asked == [(row_id, 2)]
    assert journal.started == []
    assert dispatcher.counters.lost_leases == 1
