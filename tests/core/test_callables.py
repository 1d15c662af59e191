"""What may be handed over to be called, and what is refused before anything runs."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fencepost.core.callables import Handler, as_handler
from fencepost.errors import ConfigError


def both(job: Any, context: Any) -> Any:
    return job, context


def alone(job: Any) -> Any:
    return job


def three(job: Any, context: Any, more: Any) -> None: ...


def steps(job: Any) -> Iterator[int]:
    yield 1


async def asteps(job: Any) -> AsyncIterator[int]:
    yield 1


async def later(job: Any, context: Any) -> Any:
    return job, context


class Plain:
    def __call__(self, job: Any) -> Any:
        return job

    async def method(self, job: Any, context: Any) -> Any:
        return job, context


class Later:
    async def __call__(self, job: Any, context: Any) -> Any:
        return job, context


def handler(function: object) -> Handler:
    return as_handler(function, "the handler of task 'x'", "handler(job, context)")


@pytest.mark.parametrize(
    ("function", "is_async", "result", "name"),
    [
        (both, False, (1, 2), "both"),
        (alone, False, 1, "alone"),
        (functools.partial(three, more=3), False, None, "three"),
        (Plain(), False, 1, "Plain"),
    ],
)
def test_it_is_called_with_what_it_takes(function: object, is_async: bool, result: Any, name: str) -> None:
    made = handler(function)
    assert (made.is_async, made.call(1, 2), made.name) == (is_async, result, f"{__name__}.{name}")


@pytest.mark.parametrize("function", [later, Plain().method, Later(), functools.partial(later, context=3)])
async def test_one_that_makes_a_coroutine_is_seen(function: object) -> None:
    made = handler(function)
    assert made.is_async
    job, _ = await made.call(1, 2)
    assert job == 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (7, "must be a function handler"),
        (Plain, "must be a function handler"),
        (three, r"the handler of task 'x' takes \(job: .*more.*; it must accept handler\(job, context\)"),
        (lambda: None, "must accept"),
        (steps, "is a generator"),
        (asteps, "is a generator"),
        (functools.partial(steps, 1), "is a generator"),
        (max, "parameters .* cannot be read; wrap it"),
    ],
)
def test_what_cannot_be_called_so_is_refused(function: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        handler(function)
