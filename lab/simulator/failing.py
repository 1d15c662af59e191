"""How user code fails in a simulation: what publishers and handlers raise, for the faults that they share."""

from __future__ import annotations

from datetime import timedelta

from fencepost.errors import Defer, Permanent, Retryable


def fail(kind: str, seconds: float) -> None:
    """Raise what a fault stands for; nothing where it is of another kind.

    Args:
        seconds: of the fault, for those that name a delay.
    """
    match kind:
        case "retry" | "false failure":
            raise Retryable("not now")
        case "retry after":
            raise Retryable("not now", delay=timedelta(seconds=min(seconds, 0.4)))
        case "unavailable":
            raise Retryable("nobody there", unavailable=True)
        case "permanent":
            raise Permanent("never")
        case "defer":
            raise Defer(timedelta(seconds=min(seconds, 1.0)), "not yet")
        case "raise":
            raise ValueError("a bug")
        case "exit":
            raise SystemExit(3)
