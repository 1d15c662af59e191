"""What an exception of a publisher or a handler says about its attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fencepost.core.error_text import describe, storable
from fencepost.core.outcome import Deferred, Disabled, Failed, Refused, Result
from fencepost.errors import Defer, Gone, Permanent, Retryable
from fencepost.runtime.threads import Carried


def classified(error: BaseException, on_unexpected: Callable[[BaseException], None]) -> Result:
    """Return what an exception says; ``on_unexpected`` is told of one that is not classified.

    Raises:
        asyncio.CancelledError: where the error is this task's own end.
    """
    match error:
        case Gone():
            return Disabled(_reason(error))
        case Permanent():
            return Refused(_reason(error))
        case Defer():
            return Deferred(error.delay, _reason(error))
        case Retryable():
            return Failed(_reason(error), error.delay, unavailable=error.unavailable)
    if _is_our_own_end(error):
        raise error
    cause = error.error if isinstance(error, Carried) else error
    on_unexpected(cause)
    return Failed(describe(cause), unexpected=True)


def _reason(failure: Exception) -> str:
    try:
        return storable(str(failure)) or type(failure).__name__
    except BaseException:  # noqa: BLE001 - a hostile __str__ must not turn a classified failure into another
        return describe(failure)


def _is_our_own_end(error: BaseException) -> bool:
    """Tell the cancellation or the closing of this task from what user code raised by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True  # this coroutine is closed as garbage, after its loop has ended
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
