"""The dispatcher as it is shipped, with a publisher that does nothing.

Run as ``python -m fencepost.bench.shipped``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import asyncio
import time

from fencepost.bench.contender import BATCH, Assignment, Drained, report
from fencepost.core.records import Message
from fencepost.publishers.base import Delivery
from fencepost.runtime.dispatcher import Dispatcher
from fencepost.runtime.routes import Route

_LOOK_SECONDS = 0.005


async def _publish(_message: Message, _delivery: Delivery) -> None:
    """Count as delivered at once."""


async def _drain(assignment: Assignment) -> Drained:
    async with Dispatcher(assignment.url, [Route("*", _publish)], batch=BATCH) as dispatcher:
        started = time.monotonic()
        running = asyncio.create_task(dispatcher.run(handle_signals=False))
        # The dispatcher tells nobody that it has nothing left: to it, more may come at any time.
        while dispatcher.counters.delivered < assignment.messages and not running.done():  # noqa: ASYNC110 - hence
            await asyncio.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - started
        dispatcher.stop()
        await running
        return Drained(dispatcher.counters.delivered, seconds)


def drain(assignment: Assignment) -> Drained:
    """Run the dispatcher, all settings at their defaults, until everything is delivered."""
    return asyncio.run(_drain(assignment))


if __name__ == "__main__":
    report(drain)
