"""Sabotages of the shipped runtime, and of the statements under it, that the simulator has to find."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from lab.fake_store import claims, holders, suspects
from lab.fake_store.messages import with_ids
from lab.fake_store.rows import OUTBOX
from lab.fake_store.statements import STATEMENTS
from lab.simulator.failover import failover_plan_of
from lab.simulator.plan import Fault, Plan, plan_of

from fencepost.core.lease import TrustWindow
from fencepost.core.outcome import Unstarted
from fencepost.core.records import Claimed
from fencepost.runtime import claimer, flight, lane_runner, lanes, publishing
from fencepost.runtime.dispatcher import Dispatcher
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.lanes import Lane
from fencepost.runtime.publishing import DELIVERED
from fencepost.runtime.results import MessageResults
from fencepost.store import fenced, ledger

Patch = Any


def _statement(name: str, answer: Callable[..., Awaitable[Any]]) -> Patch:
    return mock.patch.dict(STATEMENTS, {name: answer})


# --- the store's part of the protocol --------------------------------------------------------------------


def finalize_without_fence() -> Patch:
    return mock.patch.object(holders, "is_held", lambda row, token, message_ids: row.status == "processing")


def fence_without_the_message() -> Patch:
    def is_held(row: Any, token: int, message_ids: Any) -> bool:
        return bool(row.status == "processing" and row.lease_version == token)

    return mock.patch.object(holders, "is_held", is_held)


def attempts_not_charged() -> Patch:
    honest = claims.taken

    def taken(turn: Any, params: Any, row: Any) -> Any:
        after = honest(turn, params, row)
        return after._replace(attempts=max(1, row.attempts)) if after.status == "processing" else after

    return mock.patch.object(suspects, "taken", taken)


def suspects_before_their_lease_has_ended() -> Patch:
    return mock.patch.object(suspects, "_is_expired", lambda turn, row: row.status == "processing")


def nothing_promoted() -> Patch:
    async def promote(turn: Any, params: Any) -> list[Any]:
        return []

    return _statement("promote", promote)


def repeats_not_recognized() -> Patch:
    async def finalized(turn: Any, params: Any) -> list[Any]:
        return []

    return _statement("finalized", finalized)


def suspects_out_of_their_turn() -> Patch:
    return mock.patch.object(suspects, "heads", lambda rows: {row.id: row for row in rows})


def turns_not_looked_at() -> Patch:
    async def mark_done_ordered(turn: Any, params: Any) -> list[Any]:
        results = {
            row_id: (token, outcome)
            for row_id, token, outcome in zip(params["ids"], params["tokens"], params["outcomes"], strict=True)
        }

        def still(row: Any) -> bool:
            return holders.is_held(row, results[row.id][0], [row.message_id])

        mine = await turn.lock_all(OUTBOX, filter(still, with_ids(turn, params["ids"])), still)
        for row in mine:
            done = row._replace(status="done", outcome=results[row.id][1], done_at=turn.now, lease_until=None)
            turn.put(OUTBOX, done)
        return [(row.id,) for row in mine]

    return _statement("mark_done_ordered", mark_done_ordered)


def rate_not_spent() -> Patch:
    async def rate_spend(turn: Any, params: Any) -> list[Any]:
        return []

    return _statement("rate_spend", rate_spend)


def purged_too_early() -> Patch:
    honest = STATEMENTS["purge"]

    async def purge(turn: Any, params: Any) -> list[Any]:
        return await honest(turn, {**params, "older_than": 0.0})

    return _statement("purge", purge)


# --- the runtime's part ----------------------------------------------------------------------------------


def heartbeat_never_beats() -> Patch:
    return mock.patch.object(Held, "to_beat", return_value=[])


def held_rows_not_given_back() -> Patch:
    async def cut_off(self: Any, patience: float) -> None:
        return

    return mock.patch.object(flight.Flight, "cut_off", cut_off)


def publish_repeated_without_a_claim() -> Patch:
    honest = publishing.publish

    async def publish(*given: Any, **options: Any) -> Any:
        result = await honest(*given, **options)
        return result if result is DELIVERED else await honest(*given, **options)

    return mock.patch.object(lane_runner, "publish", publish)


def failures_taken_for_deliveries() -> Patch:
    honest = publishing.publish

    async def publish(*given: Any, **options: Any) -> Any:
        await honest(*given, **options)
        return DELIVERED

    return mock.patch.object(lane_runner, "publish", publish)


def followers_sent_after_a_failure() -> Patch:
    honest = lanes.lanes_of

    def lanes_of(*given: Any) -> list[Lane]:
        return [Lane([each], lane.bulk) for lane in honest(*given) for each in lane.holdings]

    return mock.patch.object(flight, "lanes_of", lanes_of)


def lease_trusted_too_long() -> Patch:
    def remaining(self: TrustWindow, now: float) -> float:
        return max(0.0, self.sent_at + 4 * self.lease - now)

    return mock.patch.object(TrustWindow, "remaining", remaining)


def late_claims_kept() -> Patch:
    async def claim(self: Any, ask: Callable[[], Awaitable[claimer.Batch]]) -> claimer.Batch:
        batch = await ask()
        self._held.add(batch.holdings)
        return batch

    def is_lost(holding: Holding) -> bool:
        return bool(holding.lost)

    return _both(
        mock.patch.object(Dispatcher, "_claim", claim), mock.patch.object(lane_runner, "_is_lost", is_lost)
    )


def lost_results_dropped() -> Patch:
    async def write(self: Any, batch: Sequence[Any]) -> None:
        found = await self._link.run(
            lambda: self._results.operation(batch), atomic=self._results.needs_transaction(batch), tries=1
        )
        self._held.remove(holding for holding, _ in batch)
        self._results.written(batch, found)

    async def dropped(self: Any, batch: Sequence[Any]) -> None:
        try:
            await write(self, batch)
        except Exception:
            self._held.remove(holding for holding, _ in batch)

    return mock.patch.object(Finalizer, "_write", dropped)


def released_with_nothing_written() -> Patch:
    honest = flight.Flight.finish

    def finish(self: Any, holding: Holding, result: Any) -> None:
        if isinstance(result, Unstarted):
            holding.stage = Stage.FINALIZING
            self._held.remove([holding])
        else:
            honest(self, holding, result)

    return mock.patch.object(flight.Flight, "finish", finish)


def every_failure_refunded() -> Patch:
    honest = fenced.reschedule

    def reschedule(catalog: Any, entries: Any) -> Any:
        return honest(catalog, [replace(each, refund_attempt=True) for each in entries])

    return mock.patch.object(fenced, "reschedule", reschedule)


def line_not_released() -> Patch:
    return mock.patch.object(flight.Flight, "release_line")


def ordered_results_without_a_transaction() -> Patch:
    return mock.patch.object(MessageResults, "needs_transaction", return_value=False)


def nobody_asked_before_a_repeat() -> Patch:
    return mock.patch.object(Claimed, "is_to_verify", False)


def ends_not_written_down() -> Patch:
    return mock.patch.object(ledger, "close_for", return_value=())


@contextlib.contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def pauses(seed: int) -> Plan:
    """Make a plan of slow publishes and pauses a little longer than the lease, which makes takeovers likely."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    faults = [
        Fault(
            "publish", chance.choice(("pause after", "pause before")), number, 1, seconds=chance.uniform(0.9, 1.8)
        )
        for number in chance.sample(range(12), 2)
    ]
    plan = Plan.plain(seed, faults=tuple(faults), keys=seed % 3)
    return replace(plan, pace=0.18, takes_batches=seed % 4 > 1)


def takeovers(seed: int) -> Plan:
    """Make a plan in which one process stops within the run of a key, and another one is slow with its head."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    stop = Fault("publish", "pause after", chance.choice((1, 2)), 1, seconds=chance.uniform(0.8, 1.3))
    plan = Plan.plain(seed, faults=(stop, Fault("publish", "retry", 0, 2)), keys=1, messages=3)
    return replace(plan, poll=0.2, pace=0.006, pace_again=0.18)


def stops(seed: int) -> Plan:
    """Make a plan in which a process is told to stop while one publish hangs, and others are in line behind it."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    hang = Fault("publish", "hang", chance.randrange(4), 1)
    stop = Fault("process", "stop", 0, at=chance.uniform(0.03, 0.3))
    plan = Plan.plain(seed, faults=(hang, stop), keys=0, messages=8)
    return replace(
        plan, processes=1, lease=1.8, publish_timeout=0.6, pace=0.006, concurrency=1, batch=3, grace=1.0
    )


def hurried(seed: int) -> Plan:
    """Make a plan in which a process is told to stop, twice, while one publish hangs."""
    plan = stops(seed)
    return replace(
        plan, faults=tuple(replace(each, kind="hurry") if each.kind == "stop" else each for each in plan.faults)
    )


def lost_answers(seed: int) -> Plan:
    """Make a plan in which the answer to a result is lost."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    kind = chance.choice(("cut after", "hole after", "cut before"))
    faults = tuple(Fault("write", kind, process, chance.randrange(2, 8)) for process in range(2))
    return Plan.plain(seed, faults=faults, keys=seed % 3, messages=6)


def late_claims(seed: int) -> Plan:
    """Make a plan in which a process stops for about a lease while it claims."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    nth, seconds = chance.randrange(5, 10), chance.uniform(0.9, 1.2)
    faults = tuple(Fault("statement", "pause after", process, nth, seconds=seconds) for process in range(2))
    return Plan.plain(seed, faults=faults, keys=seed % 3, messages=6)


def long_runs(seed: int) -> Plan:
    """Make a plan in which the run of a key takes longer than a lease."""
    return replace(Plan.plain(seed, faults=(), keys=1), lease=0.6, publish_timeout=0.25, pace=0.24)


def failures(seed: int) -> Plan:
    """Make a plan in which the same message fails again and again."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    message = chance.randrange(6)
    kinds = (chance.choice(("retry", "raise", "false failure")) for _ in range(4))
    faults = tuple(Fault("publish", kind, message, nth) for nth, kind in enumerate(kinds, 1))
    return replace(Plan.plain(seed, faults=faults, keys=seed % 3, messages=6), max_attempts=2)


def verified(seed: int) -> Plan:
    """Make a plan of failures that are none, of messages whose receiver can be asked."""
    plan = failures(seed)
    faults = tuple(replace(each, kind="false failure") for each in plan.faults)
    return replace(plan, faults=faults, messages=tuple(replace(each, recovery="verify") for each in plan.messages))


def rated(seed: int) -> Plan:
    """Make a plan of more messages than a rate lets through at once."""
    return replace(Plan.plain(seed, faults=(), keys=seed % 3), rate=4.0, batch=3)


def written_down(seed: int) -> Plan:
    """Make a plan with a ledger."""
    return replace(failures(seed), keeps_ledger=True)


def purged(seed: int) -> Plan:
    """Make a plan in which what is done is soon past its retention, and not at once."""
    return replace(Plan.plain(seed, faults=(), keys=1), retention=0.5, pace=0.18)


def parked(seed: int) -> Plan:
    """Make a plan in which a message waits behind the head of its key, whose result is written by one who dies."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    kind, nth = chance.choice(("crash before", "crash after", "crash at answer")), chance.choice((3, 4, 5))
    crashes = tuple(Fault("write", kind, process, nth) for process in range(2))
    plan = Plan.plain(seed, faults=crashes, keys=1, messages=2)
    first, second = plan.messages
    return replace(plan, pace=0.18, messages=(first, replace(second, at=0.05)))


SABOTAGES: Mapping[Callable[[], Patch], tuple[Callable[[int], Plan], range, frozenset[str]]] = {
    finalize_without_fence: (pauses, range(30), frozenset({"I2", "I15"})),
    fence_without_the_message: (failover_plan_of, range(160), frozenset({"I1", "I2"})),
    attempts_not_charged: (plan_of, range(60), frozenset({"I7"})),
    suspects_before_their_lease_has_ended: (plan_of, range(20), frozenset({"I9"})),
    nothing_promoted: (plan_of, range(20), frozenset({"I1"})),
    repeats_not_recognized: (lost_answers, range(60), frozenset({"I2"})),
    suspects_out_of_their_turn: (pauses, range(60), frozenset({"I4"})),
    heartbeat_never_beats: (long_runs, range(20), frozenset({"I15"})),
    held_rows_not_given_back: (hurried, range(20), frozenset({"I1"})),
    publish_repeated_without_a_claim: (failures, range(20), frozenset({"I3"})),
    failures_taken_for_deliveries: (failures, range(20), frozenset({"I1"})),
    followers_sent_after_a_failure: (plan_of, range(100), frozenset({"I4"})),
    lease_trusted_too_long: (pauses, range(60), frozenset({"I15"})),
    late_claims_kept: (late_claims, range(60), frozenset({"I15"})),
    lost_results_dropped: (lost_answers, range(60), frozenset({"I1", "I2", "I15"})),
    released_with_nothing_written: (failures, range(60), frozenset({"I15"})),
    turns_not_looked_at: (takeovers, range(60), frozenset({"I4"})),
    line_not_released: (stops, range(30), frozenset({"I1"})),
    ordered_results_without_a_transaction: (parked, range(60), frozenset({"I1"})),
    rate_not_spent: (rated, range(10), frozenset({"rate"})),
    purged_too_early: (purged, range(20), frozenset({"I16"})),
    nobody_asked_before_a_repeat: (verified, range(20), frozenset({"I15"})),
    ends_not_written_down: (written_down, range(10), frozenset({"ledger"})),
    every_failure_refunded: (failures, range(60), frozenset({"I1", "I3"})),
}
"""Each with what makes the schedules, the seeds that it may take, and the guarantees that it breaks."""
