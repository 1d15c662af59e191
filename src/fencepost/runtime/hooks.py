"""Opening a publisher before its first message, and closing it after its last one, whatever its hooks do."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fencepost.core.error_text import describe
from fencepost.publishers.callable import Invocable
from fencepost.runtime.threads import Threads

log = logging.getLogger("fencepost.dispatcher")


@contextlib.asynccontextmanager
async def opened(publisher: Invocable, patience: Callable[[], float]) -> AsyncIterator[None]:
    """Open a publisher, and close it at the end of the block.

    Args:
        patience: how many seconds the closing may take, asked when it begins.
    """
    if publisher.open is not None:
        await _call(publisher.open)
    try:
        yield
    finally:
        if publisher.close is not None:
            await _close(publisher.name, publisher.close, patience())


async def _close(name: str, close: Callable[[], Any], patience: float) -> None:
    task = asyncio.create_task(_call(close))
    await asyncio.wait([task], timeout=patience)
    if not task.done():
        task.cancel()
        log.warning("publisher %s did not close in time", name)
    elif (error := task.exception()) is not None:
        # What was acknowledged stays acknowledged: a close that fails is worth a line, not a failure.
        log.warning("publisher %s failed to close: %s", name, describe(error))


async def _call(hook: Callable[[], Any]) -> None:
    """Call a publisher's hook: a plain function in a thread, since it may block."""
    threads = Threads(lambda: None, lambda _: None)
    result = hook() if inspect.iscoroutinefunction(hook) else await threads.call(hook)
    if inspect.isawaitable(result):
        await result
