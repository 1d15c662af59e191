"""Whatever a user hands over as a publisher, brought into the one form that the runtime calls."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.core.callables import called_with_both, is_a, name_of, refuse_generator
from fencepost.core.outcome import Verdict
from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.address import scheme_of
from fencepost.publishers.base import Delivery, DestinationPublisher

ACCEPTED = "publish(message, delivery) or publish(message)"
ACCEPTED_BATCH = "publish_batch(messages, deliveries)"
ACCEPTED_VERIFY = "verify(message, delivery) or verify(message)"


@dataclass(frozen=True, slots=True)
class Invocable:
    """A publisher, ready to be called.

    Args:
        call: takes the message and the delivery. What it returns may be awaitable, also when ``is_async`` is
            False (a plain function may return a coroutine); await it then.
        is_async: calling it only makes a coroutine, so it is called on the event loop. Otherwise it may
            block and belongs into a thread.
        call_batch: takes the messages and the deliveries of a batch and returns an outcome for each, in their
            order; None where the publisher takes one message at a time.
        is_batch_async: as ``is_async``, for ``call_batch``.
        verify: takes the message and the delivery and returns a `Verdict`; None where it cannot.
        is_verify_async: as ``is_async``, for ``verify``.
        scheme: of its URL, where it is a destination that has one.
        open: called once before the first message, without arguments; its result may be awaitable.
        close: called once after the last message; likewise.
        name: for logs and errors; holds no secrets.
    """

    call: Callable[[Message, Delivery], Any]
    is_async: bool
    open: Callable[[], Any] | None
    close: Callable[[], Any] | None
    name: str
    call_batch: Callable[[Sequence[Message], Sequence[Delivery]], Any] | None = None
    is_batch_async: bool = False
    verify: Callable[[Message, Delivery], Any] | None = None
    is_verify_async: bool = False
    scheme: str | None = None


def as_publisher(publisher: object) -> Invocable:
    """Return the normal form of an object with ``publish`` or ``publish_batch``, a function, or another callable.

    Functions and methods, plain or async, may take ``(message, delivery)`` or ``(message)`` alone. An object
    with ``publish_batch`` gets batches wherever it can, and one with ``verify`` is asked before a repeat.

    Raises:
        ConfigError: a class instead of an instance, a generator function, something that cannot be called,
            or parameters of another shape. The message names it.
    """
    name = _name(publisher)
    if inspect.isclass(publisher):
        raise ConfigError(f"publisher {name} is a class; pass an instance: {publisher.__name__}(...)")
    call_batch = _batch_method(publisher, name)
    is_batch_async = call_batch is not None and is_a(inspect.iscoroutinefunction, call_batch)
    if call_batch is not None and not hasattr(publisher, "publish"):
        call, is_async = _one_of(call_batch, is_batch_async), is_batch_async
    else:
        call, is_async = _single_method(publisher, name)
    verify, is_verify_async = _verify_method(publisher, name)
    return Invocable(
        call=call,
        is_async=is_async,
        open=_hook(publisher, "open", name),
        close=_hook(publisher, "close", name),
        name=name,
        call_batch=call_batch,
        is_batch_async=is_batch_async,
        verify=verify,
        is_verify_async=is_verify_async,
        scheme=scheme_of(publisher.url) if isinstance(publisher, DestinationPublisher) else None,
    )


def _single_method(publisher: object, name: str) -> tuple[Callable[[Message, Delivery], Any], bool]:
    call = getattr(publisher, "publish", publisher)
    if not callable(call) or inspect.isclass(call):
        raise ConfigError(f"publisher {name} is neither callable nor has a method {ACCEPTED}")
    return called_with_both(call, f"publisher {name}", ACCEPTED)


def _verify_method(publisher: object, name: str) -> tuple[Callable[[Message, Delivery], Any] | None, bool]:
    verify = getattr(publisher, "verify", None)
    if not callable(verify) or inspect.isclass(verify):
        return None, False  # such as a client's option of that name, for certificates
    return called_with_both(verify, f"publisher {name}.verify", ACCEPTED_VERIFY)


def checked_verdict(verdict: Any) -> Verdict:
    """Refuse what is no verdict: it must never be taken for one.

    Raises:
        TypeError: what is wrong with it.
    """
    if isinstance(verdict, str):
        with contextlib.suppress(ValueError):
            return Verdict(verdict)
    shown = repr(verdict[:40]) if isinstance(verdict, str) else type(verdict).__name__
    raise TypeError(f"verify must return Verdict.DONE, Verdict.NOT_DONE or Verdict.UNKNOWN, not {shown}")


def _batch_method(publisher: object, name: str) -> Callable[..., Any] | None:
    call = getattr(publisher, "publish_batch", None)
    if call is None:
        return None
    if not callable(call) or inspect.isclass(call):
        raise ConfigError(f"publisher {name}: its attribute 'publish_batch' must be a method {ACCEPTED_BATCH}")
    refuse_generator(call, f"publisher {name}")
    try:
        inspect.signature(call).bind(None, None)
    except (TypeError, ValueError):
        raise ConfigError(f"publisher {name}: its method must accept {ACCEPTED_BATCH}") from None
    return call  # type: ignore[no-any-return]  # whatever the user's object has there, it is callable


def _one_of(call_batch: Callable[..., Any], is_async: bool) -> Callable[[Message, Delivery], Any]:
    """Make a batch of one of each message, for a publisher that takes nothing else."""

    def call(message: Message, delivery: Delivery) -> Any:
        outcomes = call_batch([message], [delivery])
        return awaited(outcomes) if inspect.isawaitable(outcomes) else _raise_outcome(outcomes)

    async def call_async(message: Message, delivery: Delivery) -> None:
        await awaited(call_batch([message], [delivery]))

    async def awaited(outcomes: Awaitable[Any]) -> None:
        _raise_outcome(await outcomes)

    return call_async if is_async else call


def _raise_outcome(outcomes: Any) -> None:
    outcome = checked_outcomes(outcomes, 1)[0]
    if outcome is not None:
        raise outcome


def checked_outcomes(outcomes: Any, many: int) -> Sequence[BaseException | None]:
    """Refuse what is not one outcome for each message: it must never be taken for delivered.

    Raises:
        TypeError: what is wrong with it.
    """
    if not isinstance(outcomes, list | tuple) or len(outcomes) != many:
        shown = f"{len(outcomes)} outcomes" if isinstance(outcomes, list | tuple) else type(outcomes).__name__
        raise TypeError(
            f"publish_batch must return a list with one outcome for each of its {many} messages, not {shown}"
        )
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, BaseException):
            raise TypeError(
                "an outcome of publish_batch must be None (delivered) or an exception such as Retryable, "
                f"not {type(outcome).__name__}"
            )
    return outcomes


def _hook(publisher: object, attribute: str, name: str) -> Callable[[], Any] | None:
    # A function or a partial has nothing to open; a file-like callable's own close() is not ours to call.
    if not hasattr(publisher, "publish") and not hasattr(publisher, "publish_batch"):
        return None
    hook = getattr(publisher, attribute, None)
    if hook is None:
        return None
    if not callable(hook):
        raise ConfigError(f"publisher {name}: its attribute {attribute!r} must be a method")
    try:
        inspect.signature(hook).bind()
    except (TypeError, ValueError):
        raise ConfigError(f"publisher {name}: {attribute}() must not need arguments") from None
    return hook  # type: ignore[no-any-return]


def _name(publisher: object) -> str:
    if isinstance(publisher, DestinationPublisher):
        return repr(publisher)
    return name_of(publisher)
