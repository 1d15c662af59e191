"""A destination that is stopped, frozen or restarted."""

# ruff: noqa: S101 - a test suite is made of asserts

from __future__ import annotations

import asyncio

from fencepost.core.records import Message
from fencepost.testing.conformance.rig import CAPABILITIES, Rig, Suite, hook, scenario
from fencepost.testing.samples import sample_delivery, sample_message


class Outages(Suite):
    """Each ends by the publisher's own deadline, and the same publisher delivers afterwards."""

    @scenario(needs="stop")
    async def test_stopped_is_retryable_and_started_again_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.stop()
        for _ in range(2):
            failure = await rig.refused(sample_message(), within=rig.timeout + self.slack)
        if "unavailable" not in self.opt_outs:
            assert failure.unavailable, f"nothing listens there, and the failure is not marked: {failure}"
        await rig.start()
        await rig.delivered_again(sample_message())

    @scenario(needs="stop")
    async def test_never_reached_is_retryable_and_later_it_delivers(self, rig: Rig) -> None:
        await rig.stop()
        await rig.refused(sample_message(), within=rig.timeout + self.slack)
        await rig.start()
        await rig.delivered_again(sample_message())

    @scenario(needs="stop nothing_late")
    async def test_what_failed_for_want_of_a_connection_is_not_sent_later(self, rig: Rig) -> None:
        await rig.stop()
        # The first attempts may still have met the old connection; these know that there is none.
        await rig.refused(sample_message(), within=rig.timeout + self.slack)
        refused = [sample_message(id=number) for number in range(3)]
        for message in refused:
            await rig.refused(message, within=rig.timeout + self.slack)
        await rig.start()
        await rig.delivered_again(sample_message())
        await hook(rig.publisher.close)  # flushes whatever was kept
        arrived = {one.message_id for one in await rig.harness.received()}
        late = [message.id for message in refused if message.message_id in arrived]
        assert not late, f"sent after they were reported as failed: {len(late)} of {len(refused)}"

    @scenario(needs="restart")
    async def test_restarted_it_delivers_and_has_what_it_acknowledged(self, rig: Rig) -> None:
        before = [sample_message(id=number) for number in range(3)]
        for message in before:
            await rig.publish(message)
        await rig.restart()
        await rig.delivered_again(sample_message())
        if "durable" not in self.opt_outs:
            await rig.all_arrived(before)

    @scenario(needs="pause")
    async def test_paused_ends_by_its_own_deadline_and_resumed_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        waiting = [rig.refused(sample_message(), within=rig.timeout + self.slack) for _ in range(3)]
        await asyncio.gather(*waiting)
        await rig.harness.resume()
        await rig.delivered_again(sample_message())

    @scenario(needs="pause")
    async def test_a_publish_ends_before_its_lease(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        lease = rig.timeout * 0.6
        await rig.refused(sample_message(), sample_delivery(lease=lease), within=lease)
        await rig.harness.resume()

    @scenario(needs="pause")
    async def test_a_cancelled_publish_leaves_the_publisher_usable(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        running = asyncio.ensure_future(rig.publish(sample_message()))
        await asyncio.wait({running}, timeout=rig.timeout / 4)
        running.cancel()
        await asyncio.wait({running}, timeout=self.slack)
        assert running.cancelled(), "a publish must end when it is cancelled"
        await rig.harness.resume()
        await rig.delivered_again(sample_message())

    async def _delivered_again(self, rig: Rig, message: Message) -> None:
        """As `Rig.delivered_again`; kept for suites that were written before it."""
        await rig.delivered_again(message)


CAPABILITIES.update(("durable", "unavailable"))
