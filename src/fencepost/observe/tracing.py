"""W3C trace context: taken along at enqueue, and continued by a span for each publish.

OpenTelemetry is never loaded for its own sake: where the process has not done so, nobody can have begun a trace,
and nobody listens to spans. Then all of this is one look into `sys.modules`. Without a tracer provider the stored
headers travel unchanged.

Spans follow the semantic conventions for messaging (https://opentelemetry.io/docs/specs/semconv/messaging/).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencepost.core.outcome import Deferred, Delivered, Disabled, Failed, Refused, Result
from fencepost.core.records import Message

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer

log = logging.getLogger("fencepost.tracing")

LOOK_AGAIN_SECONDS = 0.1
"""How long a process without a tracer provider counts as such."""

CONTEXT_HEADERS = frozenset({"traceparent", "tracestate"})
"""Baggage is left to the application: it may hold what must not leave the process."""

SYSTEM = "fencepost"
"""``messaging.system`` where the destination is a publisher of the user's own."""
SYSTEMS: Mapping[str, str] = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws_sqs",
    "sns": "aws.sns",
    "https": "http",
    "rediss": "redis",
    "mqtts": "mqtt",
}
"""From a destination's scheme to its name in the conventions, where the two differ."""


def with_current_context(headers: Any) -> Any:
    """Return a new message's headers with the trace context of the span that is current, if there is one.

    The caller's own ``traceparent`` or ``tracestate`` stands. What is no mapping comes back as it is.
    """
    api = _loaded_api()
    if api is None or not (headers is None or isinstance(headers, Mapping)):
        return headers
    if not api.get_current_span().get_span_context().is_valid:
        return headers
    if headers and any(isinstance(name, str) and name.lower() in CONTEXT_HEADERS for name in headers):
        return headers
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return {**(headers or {}), **carrier}


def is_listening() -> bool:
    """Tell whether a tracer provider is set, so that a `PublishSpan` has somebody to tell."""
    global _silent_until  # noqa: PLW0603 - one a process, as the provider itself
    if "opentelemetry.trace" not in sys.modules:
        return False
    now = time.monotonic()
    if now < _silent_until:
        return False
    api = _loaded_api()
    if isinstance(api.get_tracer_provider(), (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        # Asking takes as long as some publishes; a provider that is set later is seen soon.
        _silent_until = now + LOOK_AGAIN_SECONDS
        return False
    return True


class PublishSpan:
    """The span of one publish, a child of the trace context that the message was enqueued with.

    A tracer provider that raises costs its span, never the publish.

    Args:
        message: as it was claimed.
        attempt: 1 for the first.
        publisher: its name for people.
        scheme: of its URL, if it has one.
        batch: how many messages go together.
    """

    def __init__(
        self, message: Message, *, attempt: int, publisher: str, scheme: str | None, batch: int | None = None
    ) -> None:
        from opentelemetry import trace

        self._api = trace
        self._span: Any = self._api.INVALID_SPAN
        self.message = message
        """The message to publish: its trace headers are those of this span, so that the receiver continues it."""
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM if scheme is None else SYSTEMS.get(scheme, scheme),
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": message.queue,
            "messaging.message.id": str(message.message_id),
            "messaging.message.body.size": len(message.payload),
            "fencepost.event_type": message.event_type,
            "fencepost.attempt": attempt,
            "fencepost.publisher": publisher,
        }
        if batch is not None:
            attributes["messaging.batch.message_count"] = batch
        with _harmless():
            self._span = _tracer(self._api).start_span(
                f"publish {message.queue}",
                context=_stored_context(message),
                kind=self._api.SpanKind.PRODUCER,
                attributes=attributes,
            )
            self.message = self._continued(message)

    def _continued(self, message: Message) -> Message:
        if not self._span.get_span_context().is_valid:
            return message
        headers = {name: text for name, text in message.headers.items() if name.lower() not in CONTEXT_HEADERS}
        _propagator().inject(headers, context=self._api.set_span_in_context(self._span, _no_context()))
        return replace(message, headers=headers)

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current span, so that those of instrumented clients become its children."""
        current: AbstractContextManager[Any] = self._api.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return current

    def end(self, result: Result | None) -> None:
        """End it with what became of the publish; None where nobody knows: timed out, or cut off at a stop."""
        with _harmless():
            failure, text = _failure(result)
            if failure:
                self._span.set_attribute("error.type", failure)
                self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, text))
            if result is not None:
                self._span.set_attribute("fencepost.outcome", type(result).__name__.lower())
            self._span.end()


def _failure(result: Result | None) -> tuple[str, str]:
    """Return the class of a failure, of which there are few, and its text; a deferral is none."""
    match result:
        case Delivered() | Deferred():
            return "", ""
        case Failed(unexpected=True):
            return "unclassified", result.error
        case Failed(unavailable=True):
            return "unavailable", result.error
        case Failed():
            return "retryable", result.error
        case Disabled():
            return "gone", result.error
        case Refused():
            return "permanent", result.error
    return "unknown", "no result: timed out, or cut off"


_silent_until = 0.0
_found: tuple[object, Tracer] | None = None


def _tracer(api: Any) -> Tracer:
    """Return a tracer, the same while the provider is."""
    global _found  # noqa: PLW0603 - one a process, as the provider itself
    provider = api.get_tracer_provider()
    if _found is None or _found[0] is not provider:
        _found = (provider, provider.get_tracer("fencepost"))
    return _found[1]


def _loaded_api() -> Any:
    if "opentelemetry.trace" not in sys.modules:
        return None
    # By an import, since another thread may be loading it just now: this waits for the whole of it.
    from opentelemetry import trace

    return trace


def _propagator() -> Any:
    """Return the W3C format, whatever the process is set to: that is what the headers promise."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _stored_context(message: Message) -> Any:
    """Return the context that the message was enqueued with, and nothing of the one the dispatcher runs in."""
    stored: Mapping[str, object] = message.headers  # a plain INSERT can have put other JSON than text there
    carrier = {name.lower(): text for name, text in stored.items() if isinstance(text, str)}
    return _propagator().extract(carrier, context=_no_context())


def _no_context() -> Any:
    from opentelemetry.context import Context

    return Context()


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("a span was lost; the publish goes on")
