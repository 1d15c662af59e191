"""One publish, from the call to its classified result: whatever a publisher does, this returns."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fencepost.core.error_text import storable
from fencepost.core.outcome import Delivered, Failed, Refused, Result, Unclear, Unstarted, Verdict, Verified
from fencepost.core.records import Message
from fencepost.observe.tracing import PublishSpan, is_listening
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import Invocable, checked_outcomes, checked_verdict
from fencepost.runtime import classify
from fencepost.runtime.held import LateStart, refuse_late
from fencepost.runtime.threads import Threads

log = logging.getLogger("fencepost.publish")

DELIVERED, VERIFIED = Delivered(), Verified()


async def publish(
    invocable: Invocable,
    message: Message,
    delivery: Delivery,
    *,
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> Result:
    """Publish one message and classify how it ended. Time-outs are the caller's: it cancels this task.

    Raises:
        asyncio.CancelledError: only when this task itself is cancelled.
    """
    if not is_listening():
        return await _publish(invocable, message, delivery, threads, on_unexpected)
    span, result = _span(invocable, message, delivery), None
    try:
        with span.current():
            result = await _publish(invocable, span.message, delivery, threads, on_unexpected)
    finally:
        span.end(result)
    return result


def _span(invocable: Invocable, message: Message, delivery: Delivery, many: int | None = None) -> PublishSpan:
    return PublishSpan(
        message, attempt=delivery.attempt, publisher=invocable.name, scheme=invocable.scheme, batch=many
    )


async def _publish(
    invocable: Invocable,
    message: Message,
    delivery: Delivery,
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> Result:
    try:
        await _asked(invocable.call, invocable.is_async, message, delivery, threads)
    except LateStart:
        return Unstarted()
    except BaseException as error:  # noqa: BLE001 - classified there
        return classified(error, invocable, message, on_unexpected)
    return DELIVERED


async def verified(
    invocable: Invocable,
    message: Message,
    delivery: Delivery,
    *,
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> Result | None:
    """Ask a publisher about earlier attempts; return how this one ends, or None where it may publish.

    Raises:
        asyncio.CancelledError: only when this task itself is cancelled.
    """
    if invocable.verify is None:
        return Unclear(
            f"an earlier attempt may have arrived, and publisher {invocable.name} has no verify() to ask: "
            "look at the receiver, then `fencepost dead retry` or `skip`; or give the publisher a "
            "verify(message, delivery) that returns a Verdict"
        )
    try:
        verdict = checked_verdict(
            await _asked(invocable.verify, invocable.is_verify_async, message, delivery, threads)
        )
    except LateStart:
        return Unstarted()
    except BaseException as error:  # noqa: BLE001 - classified there
        return _unverified(classified(error, invocable, message, on_unexpected))
    match verdict:
        case Verdict.DONE:
            return VERIFIED
        case Verdict.NOT_DONE:
            return None
        case Verdict.UNKNOWN:
            return Unclear("verify: nobody can tell whether an earlier attempt arrived")


def _unverified(result: Result) -> Result:
    """Return what it means that a verify raised: nothing was published, and nothing is known."""
    match result:
        case Failed(error=error):
            return replace(result, error=f"verify: {error}", unverified=True)
        case Refused(error=error):
            return Unclear(f"verify: {error}")
    return result


async def _asked(
    call: Callable[[Message, Delivery], Any],
    is_async: bool,
    message: Message,
    delivery: Delivery,
    threads: Threads,
) -> Any:
    def call_in_time() -> Any:
        refuse_late(delivery.lost, delivery.remaining())
        return call(message, delivery)

    if is_async:
        return await call(message, delivery)
    result = await threads.call(call_in_time)
    return await result if inspect.isawaitable(result) else result


async def publish_batch(
    invocable: Invocable,
    batch: Sequence[tuple[Message, Delivery]],
    *,
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> list[Result]:
    """Publish a batch and classify how each message of it ended. What is raised counts for all of them.

    Raises:
        asyncio.CancelledError: only when this task itself is cancelled.
    """
    if not is_listening():
        return await _publish_batch(invocable, batch, threads, on_unexpected)
    spans = [_span(invocable, message, delivery, len(batch)) for message, delivery in batch]
    traced = [(span.message, delivery) for span, (_, delivery) in zip(spans, batch, strict=True)]
    results = None
    try:
        results = await _publish_batch(invocable, traced, threads, on_unexpected)
    finally:
        for place, span in enumerate(spans):
            span.end(None if results is None else results[place])
    return results


async def _publish_batch(
    invocable: Invocable,
    batch: Sequence[tuple[Message, Delivery]],
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> list[Result]:
    call = invocable.call_batch
    assert call is not None  # noqa: S101 - for the type checker: the caller has looked
    messages, deliveries = [message for message, _ in batch], [delivery for _, delivery in batch]

    def call_in_time() -> Any:
        for each in deliveries:
            refuse_late(each.lost, each.remaining())
        return call(messages, deliveries)

    try:
        if invocable.is_batch_async:
            outcomes = await call(messages, deliveries)
        else:
            outcomes = await threads.call(call_in_time)
            if inspect.isawaitable(outcomes):
                outcomes = await outcomes
        outcomes = checked_outcomes(outcomes, len(batch))
    except LateStart:
        return [Unstarted()] * len(batch)
    except BaseException as error:  # noqa: BLE001 - classified there
        first = classified(error, invocable, messages[0], on_unexpected)
        return [first] * len(batch)
    return [
        DELIVERED if outcome is None else classified(outcome, invocable, message, on_unexpected)
        for message, outcome in zip(messages, outcomes, strict=True)
    ]


def classified(
    error: BaseException, invocable: Invocable, message: Message, on_unexpected: Callable[[BaseException], None]
) -> Result:
    """Return what an exception says about a publish; see `classify.classified`."""

    def unexpected(cause: BaseException) -> None:
        log.error(
            "publisher %s raised an unclassified exception for message %d (%s): treated as retryable",
            invocable.name,
            message.id,
            storable(message.event_type, 200),
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        on_unexpected(cause)

    return classify.classified(error, unexpected)
