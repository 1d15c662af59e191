"""The recording publisher that users' tests rely on."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

import pytest

from fencepost.errors import Permanent, Retryable
from fencepost.testing import RecordingPublisher, sample_delivery, sample_message


async def test_records_identity_attempt_and_token() -> None:
    publisher = RecordingPublisher()
    message = sample_message("a")
    await publisher.publish(message, sample_delivery(attempt=3, token=8))
    (call,) = publisher.calls
    assert (call.message_id, call.event_type, call.attempt, call.token) == (message.message_id, "a", 3, 8)
    assert publisher.delivered == [call]
    assert publisher.failed == []


async def test_follows_the_script_of_each_event_type_and_then_delivers() -> None:
    ran: list[str] = []

    async def step(message: object, delivery: object) -> None:
        ran.append("step")

    publisher = RecordingPublisher(
        {"a": [Retryable("down"), Permanent, step], "b": itertools.repeat(KeyError("x"))}
    )
    with pytest.raises(Retryable, match="down"):
        await publisher.publish(sample_message("a"), sample_delivery())
    with pytest.raises(Permanent):
        await publisher.publish(sample_message("a"), sample_delivery())
    for _ in range(3):
        await publisher.publish(sample_message("a"), sample_delivery())
        with pytest.raises(KeyError) as error:
            await publisher.publish(sample_message("b"), sample_delivery())
    assert len(error.traceback) == 3, "a repeated error must not gather the tracebacks of its earlier raises"
    assert ran == ["step"]
    assert len(publisher.delivered) == 3
    assert len(publisher.failed) == 5


async def test_waits_for_calls() -> None:
    publisher = RecordingPublisher()
    waiting = asyncio.create_task(publisher.wait_for(2))
    await publisher.publish(sample_message(), sample_delivery())
    assert not waiting.done()
    await publisher.publish(sample_message(), sample_delivery())
    assert len(await waiting) == 2
    with pytest.raises(TimeoutError, match="2 of 3 calls"):
        await publisher.wait_for(3, timeout=0.01)


@pytest.mark.parametrize("module", ["fencepost.testing", "fencepost.testing.publisher_conformance"])
def test_importing_it_needs_no_test_framework_and_no_client_library(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'pytest', 'httpx', 'nats'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
