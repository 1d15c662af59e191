"""What users hand over to be called: looked at once, before anything depends on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencepost.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Handler:
    """A function of two arguments.

    Args:
        call: takes both. What it returns may be awaitable, also when ``is_async`` is False; await it then.
        is_async: calling it only makes a coroutine, so it is called on the event loop. Otherwise it may block and
            belongs into a thread.
        name: for logs and errors.
    """

    call: Callable[[Any, Any], Any]
    is_async: bool
    name: str


def as_handler(function: object, what: str, accepted: str) -> Handler:
    """Return the normal form of a function that takes two arguments, or the first of them alone.

    Args:
        function: plain or async; a method, a partial or an object that can be called will do.
        what: for errors, such as ``"the handler of task 'x'"``.
        accepted: its shape, such as ``"handler(job, context)"``.

    Raises:
        ConfigError: a class, a generator function, something that cannot be called, or other parameters.
    """
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"{what} must be a function {accepted}, not {function!r}")
    call, is_async = called_with_both(function, what, accepted)
    return Handler(call, is_async, name_of(function))


def called_with_both(
    function: Callable[..., Any], what: str, accepted: str
) -> tuple[Callable[[Any, Any], Any], bool]:
    """Return a call that takes two arguments, and whether it is async; see `as_handler`.

    Raises:
        ConfigError: a generator function, or other parameters.
    """
    refuse_generator(function, what)
    is_async = is_a(inspect.iscoroutinefunction, function)
    return (function if _takes_both(function, what, accepted) else _with_the_first(function)), is_async


def refuse_generator(function: Callable[..., Any], what: str) -> None:
    """Refuse a generator function.

    Raises:
        ConfigError: calling it runs none of its body: all would count as done without having begun.
    """
    if is_a(inspect.isgeneratorfunction, function) or is_a(inspect.isasyncgenfunction, function):
        raise ConfigError(f"{what} is a generator (it has 'yield'); it must return when it is done")


def name_of(function: object) -> str:
    """Return module and qualified name of a function, a partial's function, or an object's class."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _takes_both(function: Callable[..., Any], what: str, accepted: str) -> bool:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise ConfigError(
            f"the parameters of {what} cannot be read; wrap it in a function that takes {accepted}"
        ) from None
    for arguments in (2, 1):
        try:
            signature.bind(*[None] * arguments)
        except TypeError:
            continue
        return arguments == 2
    raise ConfigError(f"{what} takes {signature}; it must accept {accepted}")


def _with_the_first(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def call(first: Any, _: Any) -> Any:
        return function(first)

    return call


def is_a(kind: Callable[[Any], bool], function: Any) -> bool:
    """Ask ``inspect`` about a function, a partial, or an object whose ``__call__`` is one."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return kind(inner) or kind(type(inner).__call__)
