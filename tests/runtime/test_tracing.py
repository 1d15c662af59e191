"""A trace goes on from the transaction that enqueued, over the publish, to the receiver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from fencepost import AsyncOutbox, Message, NewMessage, Outbox
from fencepost.core.outcome import Delivered
from fencepost.errors import Defer, Permanent, Retryable
from fencepost.observe import tracing
from fencepost.observe.tracing import PublishSpan, is_listening, with_current_context
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import as_publisher
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from fencepost.testing import sample_message
from tests.runtime.box import Box, until, wait_until

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def listened(monkeypatch: pytest.MonkeyPatch, **options: Any) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provide(monkeypatch, SimpleSpanProcessor(exporter), **options)
    return exporter


def provide(monkeypatch: pytest.MonkeyPatch, processor: SpanProcessor, **options: Any) -> None:
    provider = TracerProvider(**options)
    provider.add_span_processor(processor)
    # The public setter works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(tracing, "_silent_until", 0.0)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return listened(monkeypatch)


def traceparent_of(span: ReadableSpan | trace.Span) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


class Keeper:
    """Keeps what it is to publish, and ends as scripted."""

    def __init__(self, *script: BaseException | None) -> None:
        self._script = list(script)
        self.messages: list[Message] = []
        self.current: list[str] = []

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.messages.append(message)
        self.current.append(traceparent_of(trace.get_current_span()))
        failure = self._script.pop(0) if self._script else None
        if failure is not None:
            raise failure


async def drained(box: Box, publisher: Any, count: int) -> None:
    async with box.dispatcher(publisher) as dispatcher:
        assert await dispatcher.dispatch_once() == count


async def test_the_trace_of_the_producer_goes_on_to_the_receiver(box: Box, spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("shop")
    with tracer.start_as_current_span("order") as producer:
        box.enqueue(headers={"tenant": "acme"})
    keeper = Keeper()
    with tracer.start_as_current_span("what the dispatcher runs in"):
        await drained(box, keeper, 1)
    [span] = [each for each in spans.get_finished_spans() if each.kind is SpanKind.PRODUCER]
    assert span.parent is not None
    assert span.parent.span_id == producer.get_span_context().span_id
    assert span.context is not None
    assert span.context.trace_id == producer.get_span_context().trace_id
    [message] = keeper.messages
    assert dict(message.headers) == {"tenant": "acme", "traceparent": traceparent_of(span)}
    assert keeper.current == [traceparent_of(span)], "the spans of instrumented clients are its children"
    assert message.json() == {"n": 0}
    assert span.name == "publish default"
    assert span.status.status_code is StatusCode.UNSET
    attributes = dict(span.attributes or {})
    assert attributes.pop("fencepost.publisher").endswith("Keeper")  # type: ignore[union-attr]  # it is text
    assert attributes == {
        "messaging.system": "fencepost",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": str(message.message_id),
        "messaging.message.body.size": len(message.payload),
        "fencepost.event_type": "test",
        "fencepost.attempt": 1,
        "fencepost.outcome": "delivered",
    }


@pytest.mark.parametrize(
    ("failure", "kind", "outcome"),
    [
        (Retryable("busy"), "retryable", "failed"),
        (Retryable("down", unavailable=True), "unavailable", "failed"),
        (Permanent("never"), "permanent", "refused"),
        (KeyError("surprise"), "unclassified", "failed"),
    ],
)
async def test_a_failure_is_an_error_of_its_class(
    box: Box, spans: InMemorySpanExporter, failure: Exception, kind: str, outcome: str
) -> None:
    box.enqueue()
    await drained(box, Keeper(failure), 1)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.attributes["fencepost.outcome"]) == (kind, outcome)
    assert str(failure) in (span.status.description or "")


async def test_a_deferral_is_no_error_and_a_time_out_is_one(box: Box, spans: InMemorySpanExporter) -> None:
    from datetime import timedelta

    box.enqueue()
    await drained(box, Keeper(Defer(timedelta(hours=1), "not paid")), 1)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET

    async def sleepy(_: Message) -> None:
        await asyncio.sleep(60)

    box.enqueue()
    async with box.dispatcher(sleepy, publish_timeout=timedelta(milliseconds=50)) as dispatcher:
        await dispatcher.dispatch_once()
        await until(lambda: len(spans.get_finished_spans()) == 2, "the end of the span")
    span = spans.get_finished_spans()[1]
    assert span.attributes is not None
    assert span.attributes["error.type"] == "unknown"


async def test_each_attempt_is_a_span_of_the_same_trace(box: Box, spans: InMemorySpanExporter) -> None:
    box.enqueue(headers={"TraceParent": TRACEPARENT, "tracestate": "rojo=1"})
    keeper = Keeper(Retryable("busy"))
    async with box.dispatcher(keeper) as dispatcher:
        await dispatcher.dispatch_once()
        await until(lambda: box.conn.execute("SELECT FROM outbox WHERE available_at <= now()").fetchall())
        await dispatcher.dispatch_once()
    first, second = spans.get_finished_spans()
    for span, message in zip((first, second), keeper.messages, strict=True):
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" in TRACEPARENT
        assert dict(message.headers) == {"traceparent": traceparent_of(span), "tracestate": "rojo=1"}
    assert [span.attributes and span.attributes["fencepost.attempt"] for span in (first, second)] == [1, 2]


async def test_a_batch_has_a_span_for_each_message(box: Box, spans: InMemorySpanExporter) -> None:
    class Bulk:
        messages: Sequence[Message] = ()

        async def publish_batch(
            self, messages: Sequence[Message], deliveries: Sequence[Delivery]
        ) -> list[Exception | None]:
            self.messages = messages
            return [None, Retryable("busy"), None]

    with trace.get_tracer("shop").start_as_current_span("order") as producer:
        box.enqueue(3)
    bulk = Bulk()
    await drained(box, bulk, 3)
    found = [span for span in spans.get_finished_spans() if span.kind is SpanKind.PRODUCER]
    sent = [message.headers["traceparent"] for message in bulk.messages]
    assert sent == [traceparent_of(span) for span in found]
    assert len(set(sent)) == 3
    assert {span.parent.span_id for span in found if span.parent} == {producer.get_span_context().span_id}
    kinds = [span.attributes and span.attributes.get("error.type") for span in found]
    assert kinds == [None, "retryable", None]
    assert {span.attributes and span.attributes["messaging.batch.message_count"] for span in found} == {3}


async def test_a_batch_that_raises_ends_every_span(box: Box, spans: InMemorySpanExporter) -> None:
    class Bulk:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> None:
            raise Retryable("busy")

    box.enqueue(3)
    await drained(box, Bulk(), 3)
    assert [s.attributes and s.attributes["error.type"] for s in spans.get_finished_spans()] == ["retryable"] * 3


async def test_without_a_provider_the_stored_header_travels_unchanged(box: Box) -> None:
    assert not is_listening()
    box.enqueue(headers={"traceparent": TRACEPARENT, "tracestate": "rojo=1"})
    keeper = Keeper()
    await drained(box, keeper, 1)
    assert dict(keeper.messages[0].headers) == {"traceparent": TRACEPARENT, "tracestate": "rojo=1"}


async def test_what_is_not_sampled_says_so_to_the_receiver(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = listened(monkeypatch, sampler=ALWAYS_OFF)
    box.enqueue(headers={"traceparent": TRACEPARENT})
    keeper = Keeper()
    await drained(box, keeper, 1)
    assert keeper.messages[0].headers["traceparent"].startswith(TRACEPARENT[:36])
    assert keeper.messages[0].headers["traceparent"].endswith("-00")
    assert not exporter.get_finished_spans()


async def test_a_provider_that_raises_costs_its_span_and_not_the_publish(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: object, **__: object) -> None:
            raise RuntimeError("broken")

    provide(monkeypatch, Broken())
    box.enqueue(headers={"traceparent": TRACEPARENT})
    keeper = Keeper()
    await drained(box, keeper, 1)
    assert box.statuses() == {"done": 1}
    assert keeper.messages[0].headers["traceparent"] == TRACEPARENT
    assert "the publish goes on" in caplog.text


async def test_enqueue_takes_the_current_context_along_unless_it_is_told_otherwise(
    box: Box, spans: InMemorySpanExporter
) -> None:
    def headers() -> list[dict[str, str]]:
        return [row[0] for row in box.conn.execute("SELECT headers FROM outbox ORDER BY id").fetchall()]

    outbox, silent = Outbox(allow_autocommit=True), Outbox(allow_autocommit=True, trace=False)
    outbox.enqueue(box.conn, "without a span", None)
    with trace.get_tracer("shop").start_as_current_span("order") as span:
        own = traceparent_of(span)
        outbox.enqueue(box.conn, "plain", None)
        outbox.enqueue_many(box.conn, [NewMessage(event_type="many", payload=None, headers={"a": "b"})])
        outbox.enqueue(box.conn, "given", None, headers={"TRACEPARENT": TRACEPARENT})
        outbox.enqueue(box.conn, "given", None, headers={"tracestate": "x=y"})
        silent.enqueue(box.conn, "switched off", None)
        async with await psycopg.AsyncConnection.connect(box.url) as conn:
            await AsyncOutbox().enqueue(conn, "async", None)
            await AsyncOutbox().enqueue_many(conn, [NewMessage(event_type="async many", payload=None)])
    assert headers() == [
        {},
        {"traceparent": own},
        {"a": "b", "traceparent": own},
        {"TRACEPARENT": TRACEPARENT},
        {"tracestate": "x=y"},
        {},
        {"traceparent": own},
        {"traceparent": own},
    ]


def test_a_provider_that_is_set_later_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(tracing, "_silent_until", 0.0)
    assert not is_listening()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    wait_until(is_listening)


def test_what_is_no_mapping_is_left_for_enqueue_to_refuse(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("shop").start_as_current_span("order"):
        assert with_current_context([("a", "b")]) == [("a", "b")]
        assert set(with_current_context({1: "b"})) == {1, "traceparent"}


@pytest.mark.parametrize(
    ("publisher", "system"),
    [
        (lambda: NatsPublisher("nats://n1"), "nats"),
        (lambda: RabbitPublisher("amqps://u:p@r1/?exchange=e"), "rabbitmq"),
        (lambda: print, "fencepost"),
    ],
)
def test_a_destination_is_named_as_the_conventions_do(
    publisher: Any, system: str, spans: InMemorySpanExporter
) -> None:
    invocable = as_publisher(publisher())
    span = PublishSpan(sample_message(), attempt=1, publisher=invocable.name, scheme=invocable.scheme)
    span.end(Delivered())
    [found] = spans.get_finished_spans()
    assert found.attributes is not None
    assert found.attributes["messaging.system"] == system
    assert "u:p" not in str(found.attributes)


def test_opentelemetry_is_not_loaded_for_its_own_sake() -> None:
    code = (
        "import sys, fencepost, fencepost.runtime.dispatcher, fencepost.cli.app\n"
        "from fencepost.observe.tracing import is_listening, with_current_context\n"
        "assert not is_listening() and with_current_context(None) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
