"""Publishers that take whole batches: what their answers mean, and what a key's messages do to each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Delivery, Message, Permanent, Retryable, Route, UnexpectedFailure
from fencepost.errors import ConfigError
from fencepost.publishers.callable import as_publisher
from tests.runtime.box import Box, Stubborn, running, until
from tests.runtime.journal import SHORT

Outcomes = list[BaseException | None]
HOUR = timedelta(hours=1)


class Batches:
    """Answers with the outcomes of a script, by message id; each message without one is delivered."""

    def __init__(self, script: Mapping[int, Sequence[BaseException | None]] | None = None) -> None:
        self.script = {row_id: list(steps) for row_id, steps in (script or {}).items()}
        self.batches: list[list[int]] = []
        self.deliveries: list[Delivery] = []
        self.accepted: list[int] = []

    async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
        self.batches.append([message.id for message in messages])
        self.deliveries.extend(deliveries)
        outcomes = [self._outcome(message.id) for message in messages]
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                self.accepted.append(message.id)
        return outcomes

    def _outcome(self, row_id: int) -> BaseException | None:
        steps = self.script.get(row_id)
        return steps.pop(0) if steps else None


def states(box: Box, ids: Sequence[int]) -> list[tuple[str, int]]:
    return [(row["status"], row["attempts"]) for row in map(box.row, ids)]


async def dispatch(box: Box, publisher: Any, **options: Any) -> Any:
    async with box.dispatcher(publisher, **options) as dispatcher:
        await dispatcher.dispatch_once()
        return dispatcher.counters


# --- outcomes --------------------------------------------------------------------------------------------


async def test_each_message_of_a_batch_has_its_own_outcome(box: Box) -> None:
    ids = box.enqueue(6)
    publisher = Batches(
        {
            ids[1]: [Retryable("later")],
            ids[2]: [Permanent("never")],
            ids[3]: [Defer(HOUR, "not yet")],
            ids[4]: [ZeroDivisionError("boom")],
        }
    )
    counters = await dispatch(box, publisher)
    assert publisher.batches == [ids]
    assert states(box, ids) == [
        ("done", 1),
        ("pending", 1),
        ("dead", 1),
        ("pending", 0),
        ("pending", 1),
        ("done", 1),
    ]
    errors = [box.row(each)["last_error"] for each in ids[1:5]]
    assert errors[:3] == ["later", "never", "not yet"]
    assert "ZeroDivisionError" in errors[3]
    assert (counters.delivered, counters.unexpected, counters.deferred, counters.dead) == (2, 1, 1, 1)
    assert {(each.attempt, each.token) for each in publisher.deliveries} == {(1, 1)}


GARBAGE: dict[str, Callable[[int], Any]] = {
    "None": lambda many: None,
    "True": lambda many: True,
    "too few": lambda many: [None] * (many - 1),
    "too many": lambda many: [None] * (many + 1),
    "empty": lambda many: [],
    "a generator": lambda many: (None for _ in range(many)),
    "a dict": lambda many: dict.fromkeys(range(many)),
    "text": lambda many: "x" * many,
    "booleans": lambda many: [True] * many,
    "one boolean": lambda many: [None] * (many - 1) + [False],
    "exception classes": lambda many: [Retryable] * many,
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("many", [1, 3])
async def test_an_answer_that_makes_no_sense_delivers_nothing(
    box: Box, answer: Callable[[int], Any], many: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            return answer(len(messages))

    ids = box.enqueue(many)
    await dispatch(box, Publisher())
    assert states(box, ids) == [("pending", 1)] * many
    assert "publish_batch" in box.row(ids[0])["last_error"]
    assert len([record for record in caplog.records if record.name == "fencepost.publish"]) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Retryable("down"), ("pending", 1)),
        (Permanent("gone"), ("dead", 1)),
        (Defer(HOUR, "closed"), ("pending", 0)),
        (RuntimeError("boom"), ("pending", 1)),
        (SystemExit(3), ("pending", 1)),
        (asyncio.CancelledError(), ("pending", 1)),
        (StopIteration(), ("pending", 1)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_is_raised_counts_for_the_whole_batch(
    box: Box, error: BaseException, expected: tuple[str, int], kind: str
) -> None:
    class Async:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            raise error

    class Plain:
        def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            raise error

    ids = box.enqueue(3)
    await dispatch(box, Async() if kind == "async" else Plain())
    assert states(box, ids) == [expected] * 3


async def test_a_batch_is_timed_out_as_a_whole(box: Box) -> None:
    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            await asyncio.Event().wait()
            return []

    ids = box.enqueue(3) + box.enqueue(1, recovery="manual")
    counters = await dispatch(box, Publisher(), publish_timeout=SHORT)
    assert counters.timed_out == 4
    assert states(box, ids) == [("pending", 1)] * 3 + [("dead", 1)]
    assert "within 0.2 s" in box.row(ids[0])["last_error"]


async def test_after_a_time_out_a_key_s_followers_are_unknown_as_well(box: Box) -> None:
    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            await asyncio.Event().wait()
            return []

    ids = box.enqueue(2, ordering_key="k") + box.enqueue(1, ordering_key="k", recovery="manual")
    await dispatch(box, Publisher(), publish_timeout=SHORT)
    assert states(box, ids) == [("pending", 1), ("pending", 1), ("dead", 1)]
    assert box.row(ids[2])["outcome"] == "unknown_outcome"


async def test_a_line_behind_slots_that_all_hang_is_left_to_other_workers(box: Box) -> None:
    gate = threading.Event()

    def publish(message: Message) -> None:
        if message.event_type == "hang":
            gate.wait()

    box.enqueue(40)  # so that it knows its publishes as fast, and claims ahead
    hanging = box.enqueue(2, event_type="hang")
    later = box.enqueue(6)
    hung = box.dispatcher(publish, publish_timeout=SHORT, max_attempts=1, concurrency=2, owner="hung")
    async with running(hung):
        await until(lambda: states(box, hanging) == [("dead", 1)] * 2)
        async with running(box.dispatcher(Batches(), owner="healthy")):
            await until(lambda: states(box, later) == [("done", 1)] * 6)
        gate.set()


async def test_a_plain_publish_batch_runs_in_a_thread(box: Box) -> None:
    threads: list[str] = []

    class Publisher:
        def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            threads.append(threading.current_thread().name)
            return [None] * len(messages)

    ids = box.enqueue(3)
    await dispatch(box, Publisher())
    assert threads == ["fencepost publish"]
    assert states(box, ids) == [("done", 1)] * 3


async def test_a_plain_publish_batch_that_returns_a_coroutine_is_awaited(box: Box) -> None:
    async def answer(many: int) -> Outcomes:
        await asyncio.sleep(0)
        return [None] * many

    class Publisher:
        def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            return answer(len(messages))

    ids = box.enqueue(2)
    await dispatch(box, Publisher())
    assert states(box, ids) == [("done", 1)] * 2


async def test_a_batch_that_hangs_in_its_thread_keeps_a_slot_and_no_message(box: Box) -> None:
    gate = threading.Event()

    class Publisher:
        def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            if messages[0].event_type == "hang":
                gate.wait()
            return [None] * len(messages)

    ids = box.enqueue(2, event_type="hang")
    dispatcher = box.dispatcher(Publisher(), publish_timeout=SHORT, max_attempts=1, concurrency=2)
    async with running(dispatcher):
        await until(lambda: states(box, ids) == [("dead", 1)] * 2)
        assert dispatcher.counters.hung_threads == 1
        more = box.enqueue(4)
        await until(lambda: states(box, more) == [("done", 1)] * 4)
        gate.set()
        await until(lambda: not any(each.threads.abandoned for each in dispatcher._flight._slots.values()))


async def test_a_batch_that_swallows_its_cancellation_is_given_up_on(box: Box) -> None:
    stubborn = Stubborn()

    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            if messages[0].event_type == "stubborn":
                await stubborn.wait()
            return [None] * len(messages)

    ids = box.enqueue(2, event_type="stubborn")
    async with running(box.dispatcher(Publisher(), publish_timeout=SHORT, max_attempts=1, concurrency=4)):
        with stubborn:
            await until(lambda: states(box, ids) == [("dead", 1)] * 2)
            more = box.enqueue(5)
            await until(lambda: states(box, more) == [("done", 1)] * 5)
    assert states(box, ids) == [("dead", 1)] * 2


async def test_on_unexpected_stop_ends_the_run_after_the_batch_was_written(box: Box) -> None:
    ids = box.enqueue(3)
    k = box.enqueue(3, ordering_key="k")
    publisher = Batches({ids[1]: [ZeroDivisionError("boom")], k[0]: [Retryable("no")], k[1]: [Retryable("no")]})
    with pytest.raises(UnexpectedFailure, match="ZeroDivisionError"):
        await box.dispatcher(publisher, on_unexpected="stop", notify=False).run(handle_signals=False)
    assert states(box, ids) == [("done", 1), ("pending", 1), ("done", 1)]
    # The last one was published before the two in front of it, and comes again in its turn.
    assert states(box, k) == [("pending", 1), ("pending", 0), ("pending", 1)]


# --- shapes ----------------------------------------------------------------------------------------------


async def test_with_both_methods_a_batch_comes_by_publish_batch_and_a_suspect_alone(box: Box) -> None:
    class Both(Batches):
        def __init__(self) -> None:
            super().__init__()
            self.single: list[int] = []

        async def publish(self, message: Message) -> None:
            self.single.append(message.id)

    publisher = Both()
    (suspect,) = box.enqueue(1)
    box.outbox.claim(box.conn, "gone")
    box.expire(suspect)
    ids = box.enqueue(5)
    async with running(box.dispatcher(publisher)):
        await until(lambda: box.statuses() == {"done": 6})
    assert publisher.single == [suspect]
    assert sorted(each for batch in publisher.batches for each in batch) == ids


async def test_with_publish_batch_alone_a_suspect_comes_as_a_batch_of_one(box: Box) -> None:
    publisher = Batches()
    (suspect,) = box.enqueue(1)
    box.outbox.claim(box.conn, "gone")
    box.expire(suspect)
    ids = box.enqueue(5)
    async with running(box.dispatcher(publisher)):
        await until(lambda: box.statuses() == {"done": 6})
    assert [suspect] in publisher.batches
    assert sorted(each for batch in publisher.batches for each in batch) == [suspect, *ids]


async def test_a_batch_holds_only_what_is_routed_to_its_publisher(box: Box) -> None:
    one, two = Batches(), Batches()
    singles: list[int] = []

    async def single(message: Message) -> None:
        singles.append(message.id)

    ids: dict[str, list[int]] = {"one": [], "two": [], "single": [], "nobody": []}
    for _ in range(3):
        for event_type, chosen in ids.items():
            chosen.extend(box.enqueue(1, event_type=event_type))
    await dispatch(box, [Route("one", one), Route("two", two), Route("single", single)])
    assert (one.batches, two.batches, singles) == ([ids["one"]], [ids["two"]], ids["single"])
    assert {box.row(each)["outcome"] for each in ids["nobody"]} == {"unroutable"}


async def test_a_key_that_goes_to_two_publishers_goes_one_message_after_another(box: Box) -> None:
    class Both(Batches):
        async def publish(self, message: Message) -> None:
            order.append(message.id)

    order: list[int] = []
    batcher = Both()

    async def single(message: Message) -> None:
        order.append(message.id)

    ids = [box.enqueue(1, event_type=kind, ordering_key="k")[0] for kind in ("b", "s", "b", "s", "b")]
    await dispatch(box, [Route("b", batcher), Route("s", single)])
    assert order == ids
    assert batcher.batches == []
    assert states(box, ids) == [("done", 1)] * 5


async def test_batches_are_as_large_as_the_queue_allows_and_no_larger(box: Box) -> None:
    box.enqueue(50)
    publisher = Batches()
    async with running(box.dispatcher(publisher, concurrency=7)):
        await until(lambda: box.statuses() == {"done": 50})
    assert max(map(len, publisher.batches)) == 7


async def test_unless_told_otherwise_a_batch_does_not_wait_for_the_answers_to_the_one_before(box: Box) -> None:
    batches = 4

    class Publisher:
        def __init__(self) -> None:
            self.together = asyncio.Barrier(batches)

        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            await self.together.wait()
            return [None] * len(messages)

    box.enqueue(batches * 100)
    async with running(box.dispatcher(Publisher(), batch=100)):
        await until(lambda: box.statuses() == {"done": batches * 100})


def _not_a_method() -> Any:
    class Publisher:
        publish_batch = 3

    return Publisher()


def _too_few() -> Any:
    class Publisher:
        async def publish_batch(self, messages: Sequence[Message]) -> Outcomes:
            return []

    return Publisher()


def _generator() -> Any:
    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            for _ in messages:
                yield None

    return Publisher()


@pytest.mark.parametrize("make", [_not_a_method, _too_few, _generator])
def test_what_cannot_be_called_as_a_batch_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"publish_batch|generator"):
        as_publisher(make())


# --- keys ------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[BaseException, tuple[str, int]]] = {
    "Retryable": (Retryable("later"), ("pending", 1)),
    "Permanent": (Permanent("never"), ("dead", 1)),
    "Defer": (Defer(HOUR), ("pending", 0)),
    "unexpected": (ZeroDivisionError(), ("pending", 1)),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_what_fails_behind_a_failure_of_its_key_goes_back_as_if_never_tried(
    box: Box, failure: tuple[BaseException, tuple[str, int]]
) -> None:
    error, expected = failure
    k = box.enqueue(4, ordering_key="k")
    other = box.enqueue(2, ordering_key="other")
    unordered = box.enqueue(2)
    script = {each: [error] for each in k[1:]} | {unordered[0]: [Retryable("its own")]}
    publisher = Batches(script)
    counters = await dispatch(box, publisher)
    assert publisher.batches == [k + other + unordered]
    assert states(box, k) == [("done", 1), expected, ("pending", 0), ("pending", 0)]
    assert states(box, other) == [("done", 1)] * 2
    assert states(box, unordered) == [("pending", 1), ("done", 1)]
    assert counters.released == 2


async def test_what_is_delivered_behind_a_failure_of_its_key_comes_again_in_its_turn(box: Box) -> None:
    """It was published out of order, which cannot be undone; the receiver then gets it in order as well."""
    ids = box.enqueue(4, ordering_key="k")
    publisher = Batches({ids[1]: [Retryable("no")]})
    async with box.dispatcher(publisher) as dispatcher:
        await dispatcher.dispatch_once()
        assert states(box, ids) == [("done", 1), ("pending", 1), ("pending", 1), ("pending", 1)]
    async with running(box.dispatcher(publisher)):
        await until(lambda: box.statuses() == {"done": 4})
    assert publisher.accepted == [ids[0], ids[2], ids[3], *ids[1:]]
    assert [each["attempts"] for each in map(box.row, ids)] == [1, 2, 2, 2]


async def test_a_long_key_in_batches_keeps_its_order(box: Box) -> None:
    ids = box.enqueue(120, ordering_key="k")
    others = [each for n in range(20) for each in box.enqueue(2, ordering_key=f"o{n}")]
    publisher = Batches({each: [Retryable("once")] for each in ids[::19]} | {others[4]: [Retryable("once")]})

    class Stops(Batches):
        """Stops a key at its first failure, as the documentation asks for."""

        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            failed: set[str | None] = set()
            outcomes: Outcomes = []
            for message in messages:
                outcome = self._outcome(message.id) if message.ordering_key not in failed else Retryable("behind")
                if outcome is None:
                    self.accepted.append(message.id)
                else:
                    failed.add(message.ordering_key)
                outcomes.append(outcome)
            return outcomes

    publisher = Stops(publisher.script)
    one, two = (box.dispatcher(publisher, owner=f"w{n}", batch=25) for n in range(2))
    async with running(one), running(two):
        await until(lambda: box.statuses() == {"done": 160})
    assert [each for each in publisher.accepted if each in ids] == ids
    failed = set(ids[::19]) | {others[4]}
    assert [box.row(each)["attempts"] for each in ids + others] == [
        2 if each in failed else 1 for each in ids + others
    ]


# --- leases and stops ------------------------------------------------------------------------------------


async def test_a_lost_lease_concerns_only_its_own_message(box: Box) -> None:
    ids = box.enqueue(3)
    gate = asyncio.Event()

    class Publisher:
        lost: list[bool]

        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            await gate.wait()
            self.lost = [bool(delivery.lost) for delivery in deliveries]
            return [None] * len(messages)

    publisher = Publisher()
    async with box.dispatcher(publisher, publish_timeout=timedelta(seconds=1.9)) as dispatcher:
        first = asyncio.create_task(dispatcher.dispatch_once())
        await until(lambda: box.statuses() == {"processing": 3})
        box.expire(ids[1])
        (stolen,) = box.outbox.claim(box.conn, "thief")
        before = box.row(ids[1])
        await until(lambda: any(each.lost for each in dispatcher._held._holdings))
        gate.set()
        await first
        assert publisher.lost == [False, True, False]
        assert dispatcher.counters.lost_leases == 1
    assert box.row(ids[1]) == before
    assert stolen.id == ids[1]
    assert states(box, [ids[0], ids[2]]) == [("done", 1)] * 2


async def test_nothing_of_a_key_is_published_behind_one_that_is_known_to_be_lost(box: Box) -> None:
    k = box.enqueue(3, ordering_key="k")
    other = box.enqueue(2, ordering_key="other")
    publisher = Batches()
    async with box.dispatcher(publisher, notify=False) as dispatcher:
        batch = await dispatcher._claim(dispatcher._claimer.next)
        box.expire(k[1])
        batch.holdings[1].lost.set()
        await dispatcher._start(batch)
        await dispatcher._flight.landed()
        await dispatcher._finalizer.drained()
    assert publisher.batches == [[k[0], *other]]
    assert states(box, k) == [("done", 1), ("pending", 0), ("pending", 0)]


async def test_at_a_stop_a_batch_in_flight_is_finished_and_what_is_in_line_given_back(box: Box) -> None:
    gate = asyncio.Event()
    batches: list[list[int]] = []

    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            batches.append([message.id for message in messages])
            if len(batches) > 20:
                await gate.wait()
            return [None] * len(messages)

    box.enqueue(400)
    dispatcher = box.dispatcher(Publisher(), batch=5, concurrency=5, publish_timeout=timedelta(seconds=1.9))
    async with running(dispatcher) as task:
        await until(lambda: len(batches) == 21)
        dispatcher.stop()
        gate.set()
        assert await task
    published = sum(map(len, batches))
    assert box.statuses() == {"done": published, "pending": 400 - published}
    counted = box.conn.execute("SELECT sum(attempts) FROM outbox WHERE status = 'pending'").fetchone()
    assert counted == (0,)


async def test_a_batch_that_is_cut_off_may_have_been_delivered(box: Box) -> None:
    began = asyncio.Event()

    class Publisher:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Outcomes:
            began.set()
            await asyncio.Event().wait()
            return []

    k = box.enqueue(2, ordering_key="k")
    manual = box.enqueue(1, recovery="manual")
    dispatcher = box.dispatcher(Publisher(), grace=timedelta(0), publish_timeout=timedelta(seconds=1.9))
    async with running(dispatcher) as task:
        await began.wait()
        dispatcher.stop()
        assert not await task
    # Each of them may be with the receiver now, so each attempt counts.
    assert states(box, k) == [("pending", 1)] * 2
    assert states(box, manual) == [("dead", 1)]
