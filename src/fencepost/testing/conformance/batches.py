"""`publish_batch`: an outcome for each message, and a key that stops at its first failure."""

# ruff: noqa: S101 - a test suite is made of asserts

from __future__ import annotations

from collections.abc import Sequence

from fencepost.errors import Permanent, Retryable
from fencepost.testing.conformance.delivered import (
    check_odd,
    check_only_the_tenth_failed,
    odd_messages,
    twenty_and,
)
from fencepost.testing.conformance.rig import Outcome, Rig, Suite, scenario
from fencepost.testing.conformance.texts import BAD_HEADERS
from fencepost.testing.samples import sample_delivery, sample_message


class Batches(Suite):
    """Nothing of this is tried where the publisher has no `publish_batch`."""

    @scenario()
    async def test_a_batch_that_is_acknowledged_arrives_and_its_keys_in_order(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        keys = (None, "a", "b")
        batch = [sample_message(id=number, ordering_key=keys[number % 3]) for number in range(30)]
        _check_delivered(await rig.publish_batch(batch))
        places = {one.message_id: place for place, one in enumerate(await rig.harness.received())}
        for key in keys:
            arrived = [places[one.message_id] for one in batch if one.ordering_key == key]
            assert key is None or arrived == sorted(arrived), f"the messages of key {key} arrived out of order"

    @scenario(needs="too_large")
    async def test_in_a_batch_a_failure_stops_its_key_and_nothing_else(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        first, behind = (sample_message(id=number, ordering_key="k") for number in (1, 3))
        bad = sample_message(id=2, ordering_key="k", payload=rig.harness.too_large())
        other, unordered = sample_message(id=4, ordering_key="other"), sample_message(id=5)
        outcomes = await rig.publish_batch([first, bad, behind, other, unordered])
        assert isinstance(outcomes[1], Permanent), outcomes[1]
        assert outcomes[2] is not None, "reported as delivered behind a failure of its key"
        _check_delivered([outcomes[0], *outcomes[3:]])
        await rig.all_arrived([first, other, unordered])
        received = {one.message_id for one in await rig.harness.received()}
        assert behind.message_id not in received, "published behind a failure of its key"

    @scenario(needs="header_names")
    async def test_in_a_batch_one_bad_message_spares_twenty_neighbours(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        batch = twenty_and(sample_message(headers=BAD_HEADERS, id=99))
        await check_only_the_tenth_failed(rig, batch, list(await rig.publish_batch(batch)))

    @scenario()
    async def test_in_a_batch_one_with_hardly_any_lease_spares_twenty_neighbours(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        batch = twenty_and(sample_message(id=99))
        late, neighbours = batch[10], [*batch[:10], *batch[11:]]
        leases = [0.1 if message is late else 60.0 for message in batch]
        outcomes = await rig.outcomes(batch, [sample_delivery(lease=lease) for lease in leases])
        assert isinstance(outcomes[10], Retryable), f"no lease was left for it: {outcomes[10]!r}"
        _check_delivered([*outcomes[:10], *outcomes[11:]])
        await rig.all_arrived(neighbours)
        received = {one.message_id for one in await rig.harness.received()}
        assert late.message_id not in received, "sent without lease"

    @scenario(needs="free_text")
    async def test_in_a_batch_free_text_in_every_field_arrives_beside_twenty_others(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        odd = odd_messages()
        good = [sample_message(id=number) for number in range(20)]
        batch = [*good[:10], *(message for message, _ in odd), *good[10:]]
        outcomes = await rig.publish_batch(batch, [sample_delivery(token=5) for _ in batch])
        _check_delivered(outcomes)
        await rig.all_arrived(good)
        for message, text in odd:
            check_odd(await rig.arrived(message), text)

    @scenario(needs="stop")
    async def test_a_batch_for_a_stopped_destination_is_retryable(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        await rig.stop()
        batch = [sample_message(id=number) for number in range(5)]
        await rig.batch_refused(batch, within=rig.timeout + self.slack)


def _check_delivered(outcomes: Sequence[Outcome]) -> None:
    failed = {place: outcome for place, outcome in enumerate(outcomes) if outcome is not None}
    assert not failed, f"{len(failed)} of {len(outcomes)} were not delivered: {failed}"
