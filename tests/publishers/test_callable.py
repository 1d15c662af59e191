"""Whatever can be handed over as a publisher."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from fencepost.core.outcome import Verdict
from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import as_publisher, checked_verdict
from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.testing import RecordingPublisher, sample_delivery, sample_message

seen: list[tuple[Any, ...]] = []


class AsyncObject:
    opened = 0

    async def publish(self, message: Message, delivery: Delivery) -> None:
        seen.append((message, delivery))

    async def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.opened -= 1


class PlainObject:
    def publish(self, message: Message) -> None:
        seen.append((message,))


class StaticObject:
    @staticmethod
    async def publish(message: Message) -> None:
        seen.append((message,))


class CallableObject:
    async def __call__(self, message: Message, delivery: Delivery) -> None:
        seen.append((message, delivery))


def function(message: Message, delivery: Delivery) -> None:
    seen.append((message, delivery))


def message_only(message: Message) -> None:
    seen.append((message,))


async def coroutine(message: Message, delivery: Delivery, extra: int = 0) -> None:
    seen.append((message, delivery))


async def coroutine_message_only(message: Message) -> None:
    seen.append((message,))


def returns_coroutine(message: Message, delivery: Delivery) -> Any:
    return coroutine(message, delivery)


async def topic_first(topic: str, message: Message, delivery: Delivery) -> None:
    seen.append((message, delivery))


@pytest.mark.parametrize(
    ("publisher", "is_async", "arguments"),
    [
        (AsyncObject(), True, 2),
        (PlainObject(), False, 1),
        (StaticObject(), True, 1),
        (CallableObject(), True, 2),
        (function, False, 2),
        (message_only, False, 1),
        (coroutine, True, 2),
        (coroutine_message_only, True, 1),
        (returns_coroutine, False, 2),
        (functools.partial(topic_first, "orders"), True, 2),
        (functools.partial(functools.partial(topic_first, "orders")), True, 2),
        (functools.partial(CallableObject()), True, 2),
        (lambda message: seen.append((message,)), False, 1),
        (lambda *arguments: seen.append(arguments), False, 2),
    ],
)
async def test_accepted(publisher: object, is_async: bool, arguments: int) -> None:
    seen.clear()
    invocable = as_publisher(publisher)
    assert invocable.is_async is is_async
    message, delivery = sample_message(), sample_delivery()
    result = invocable.call(message, delivery)
    if inspect.isawaitable(result):
        await result
    assert seen == [(message, delivery)[:arguments]]


async def test_mocks_and_bound_builtins_are_accepted() -> None:
    received: list[Message] = []
    message = sample_message()
    as_publisher(received.append).call(message, sample_delivery())
    assert received == [message]
    mock = AsyncMock()
    await as_publisher(mock).call(message, sample_delivery())
    mock.publish.assert_awaited_once()


async def test_open_and_close_are_found_on_objects_only() -> None:
    publisher = AsyncObject()
    invocable = as_publisher(publisher)
    assert invocable.open is not None
    assert invocable.close is not None
    await invocable.open()
    assert publisher.opened == 1
    invocable.close()
    assert publisher.opened == 0
    assert as_publisher(PlainObject()).open is None
    assert as_publisher(function).close is None


class BadHook(PlainObject):
    open = 3


class HookWithArguments(PlainObject):
    def close(self, how: str) -> None:
        """Never called."""


class NoPublish:
    pass


class PublishIsNoMethod:
    publish = "later"


def too_many(message: Message, delivery: Delivery, more: int) -> None:
    """Never called."""


def keyword(message: Message, *, topic: str) -> None:
    """Never called."""


def nothing() -> None:
    """Never called."""


def generator(message: Message) -> Iterator[None]:
    yield


async def async_generator(message: Message) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("publisher", "text"),
    [
        (AsyncObject, "AsyncObject is a class; pass an instance: AsyncObject(...)"),
        (RecordingPublisher, "pass an instance"),
        (NoPublish(), "NoPublish is neither callable nor has a method publish(message, delivery)"),
        (PublishIsNoMethod(), "PublishIsNoMethod is neither callable"),
        (None, "NoneType is neither callable"),
        ("stdout:", "builtins.str is neither callable"),
        (too_many, "too_many takes (message: 'Message', delivery: 'Delivery', more: 'int')"),
        (keyword, "it must accept publish(message, delivery) or publish(message)"),
        (nothing, "nothing takes ()"),
        (generator, "generator (it has 'yield')"),
        (async_generator, "generator (it has 'yield')"),
        (BadHook(), "BadHook: its attribute 'open' must be a method"),
        (HookWithArguments(), "close() must not need arguments"),
        (type("Odd", (), {"__call__": print.__class__})(), "Odd"),
    ],
)
def test_refused_by_name(publisher: object, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        as_publisher(publisher)
    assert text in str(error.value)


def test_names_say_which_publisher_and_no_secret() -> None:
    assert as_publisher(function).name == f"{__name__}.function"
    assert as_publisher(functools.partial(topic_first, "orders")).name == f"{__name__}.topic_first"
    assert as_publisher(PlainObject()).name == f"{__name__}.PlainObject"
    assert (
        as_publisher(HttpPublisher("http://u:secret@h/x?query=t")).name
        == "<HttpPublisher http://***@h/x?query=***>"
    )


# --- verify ----------------------------------------------------------------------------------------------


def test_a_verify_is_found_on_objects_and_functions_and_may_leave_the_delivery_out() -> None:
    class Sync:
        def publish(self, message: Message) -> None: ...

        def verify(self, message: Message) -> Verdict:
            return Verdict.DONE

    class Async:
        async def publish(self, message: Message, delivery: Delivery) -> None: ...

        async def verify(self, message: Message, delivery: Delivery) -> Verdict:
            return Verdict.DONE

    def function(message: Message) -> None: ...

    function.verify = Sync().verify  # type: ignore[attr-defined]  # functions take attributes
    for publisher, is_async in ((Sync(), False), (Async(), True), (function, False)):
        made = as_publisher(publisher)
        assert made.is_verify_async is is_async
        assert made.verify is not None
        answer = made.verify(sample_message(), sample_delivery())
        assert (asyncio.run(answer) if inspect.iscoroutine(answer) else answer) is Verdict.DONE


def test_without_one_or_with_an_option_of_that_name_it_cannot_verify() -> None:
    class Client:
        verify = True  # certificates

        def publish(self, message: Message) -> None: ...

    assert as_publisher(Client()).verify is None
    assert as_publisher(Client().publish).verify is None


def test_a_verify_of_another_shape_is_refused_at_once() -> None:
    class Three:
        def publish(self, message: Message) -> None: ...

        def verify(self, message: Message, delivery: Delivery, more: object) -> None: ...

    class Generator:
        def publish(self, message: Message) -> None: ...

        def verify(self, message: Message) -> Iterator[Verdict]:
            yield Verdict.DONE

    with pytest.raises(ConfigError, match=r"Three\.verify takes .* it must accept verify\(message, delivery\)"):
        as_publisher(Three())
    with pytest.raises(ConfigError, match=r"Generator\.verify is a generator"):
        as_publisher(Generator())


@pytest.mark.parametrize("verdict", [True, None, 1, "finished", "x" * 999, b"done", Verdict])
def test_what_is_no_verdict_is_refused(verdict: object) -> None:
    with pytest.raises(TypeError, match=r"verify must return Verdict\.DONE") as caught:
        checked_verdict(verdict)
    assert len(str(caught.value)) < 150


def test_a_verdict_may_be_written_as_text() -> None:
    assert [checked_verdict(text) for text in ("done", "not_done", "unknown")] == list(Verdict)
