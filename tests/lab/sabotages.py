"""Sabotages of the shipped runtime, and of the statements under it, that the simulator has to find."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from lab.fake_store import claims, holders, suspects
from lab.fake_store.statements import STATEMENTS
from lab.simulator.plan import Fault, Plan, plan_of

from fencepost.core.lease import TrustWindow
from fencepost.core.outcome import Unstarted
from fencepost.runtime import claimer, flight, lanes, publishing
from fencepost.runtime.dispatcher import Dispatcher
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.lanes import Lane
from fencepost.runtime.publishing import DELIVERED
from fencepost.store import fenced

Patch = Any


def _statement(name: str, answer: Callable[..., Awaitable[Any]]) -> Patch:
    return mock.patch.dict(STATEMENTS, {name: answer})


# --- the store's part of the protocol --------------------------------------------------------------------


def finalize_without_fence() -> Patch:
    return mock.patch.object(holders, "is_held", lambda row, token: row.status == "processing")


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

    return mock.patch.object(flight, "publish", publish)


def failures_taken_for_deliveries() -> Patch:
    honest = publishing.publish

    async def publish(*given: Any, **options: Any) -> Any:
        await honest(*given, **options)
        return DELIVERED

    return mock.patch.object(flight, "publish", publish)


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

    return _both(mock.patch.object(Dispatcher, "_claim", claim), mock.patch.object(flight, "_is_lost", is_lost))


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


SABOTAGES: Mapping[Callable[[], Patch], tuple[Callable[[int], Plan], range, frozenset[str]]] = {
    finalize_without_fence: (pauses, range(30), frozenset({"I2"})),
    attempts_not_charged: (plan_of, range(60), frozenset({"I7"})),
    suspects_before_their_lease_has_ended: (plan_of, range(20), frozenset({"I9"})),
    nothing_promoted: (plan_of, range(20), frozenset({"I1"})),
    repeats_not_recognized: (plan_of, range(60, 120), frozenset({"I2"})),
    suspects_out_of_their_turn: (pauses, range(60), frozenset({"I4"})),
    heartbeat_never_beats: (plan_of, range(60), frozenset({"I15"})),
    held_rows_not_given_back: (plan_of, range(10, 70), frozenset({"I1"})),
    publish_repeated_without_a_claim: (plan_of, range(10), frozenset({"I3"})),
    failures_taken_for_deliveries: (plan_of, range(10), frozenset({"I1"})),
    followers_sent_after_a_failure: (plan_of, range(10), frozenset({"I4"})),
    lease_trusted_too_long: (pauses, range(60), frozenset({"I15"})),
    late_claims_kept: (plan_of, range(55, 110), frozenset({"I15"})),
    lost_results_dropped: (plan_of, range(60, 120), frozenset({"I1", "I2", "I15"})),
    released_with_nothing_written: (plan_of, range(100), frozenset({"I15"})),
    every_failure_refunded: (plan_of, range(40, 100), frozenset({"I1", "I3"})),
}
"""Each with what makes the schedules, the seeds that it may take, and the guarantees that it breaks."""
