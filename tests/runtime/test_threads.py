"""Threads of plain functions: kept for the next one, never shared, and counted where they hang."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading

import pytest

from fencepost.runtime import threads as module
from fencepost.runtime.threads import Threads
from tests.runtime.box import PATIENCE, until

NUMBERS = itertools.count()


def made() -> tuple[Threads, list[int]]:
    abandoned: list[int] = []
    return Threads(lambda: None, abandoned.append, f"of test {next(NUMBERS)}"), abandoned


def running(threads: Threads) -> int:
    return sum(thread.name == threads._name for thread in threading.enumerate())


async def test_one_after_the_other_they_share_a_thread() -> None:
    threads, _ = made()
    first = await threads.call(threading.get_ident)
    # It is idle a moment after its answer, and nobody outside can see when.
    await until(lambda: threads._idle)
    assert await threads.call(threading.get_ident) == first


async def test_at_once_each_has_its_own() -> None:
    threads, _ = made()
    together = threading.Barrier(20, timeout=30)

    def work() -> int:
        together.wait()
        return threading.get_ident()

    found = await asyncio.gather(*(threads.call(work) for _ in range(20)))
    assert len(set(found)) == 20


async def test_one_that_hangs_is_nobody_elses() -> None:
    threads, abandoned = made()
    goes_on, began = threading.Event(), threading.Event()

    def hang() -> int:
        began.set()
        goes_on.wait()
        return threading.get_ident()

    hanging = asyncio.create_task(threads.call(hang))
    await until(began.is_set)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert abandoned == [1]
    assert await threads.call(lambda: "another") == "another"
    goes_on.set()
    await until(lambda: threads.abandoned == 0)
    await until(lambda: threads._idle == 2)
    assert await threads.call(lambda: "either") == "either"


async def test_nothing_waits_behind_one_that_takes_long() -> None:
    """Idle threads, then as much work as there are, half of it for long."""
    threads, _ = made()
    goes_on = threading.Event()
    for _ in range(20):
        together = threading.Barrier(8, timeout=30)
        await asyncio.gather(*(threads.call(together.wait) for _ in range(8)))
        await until(lambda: threads._idle == 8, "idle threads, a moment after their ends are told")
        long = [asyncio.create_task(threads.call(goes_on.wait)) for _ in range(4)]
        quick = [asyncio.create_task(threads.call(threading.get_ident)) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*quick), PATIENCE)
        assert not any(each.done() for each in long)
        goes_on.set()
        await asyncio.gather(*long)
        goes_on.clear()
        await until(lambda: threads._idle == running(threads) == 8, "as many threads as were busy at once")


async def test_no_end_is_left_out_however_many_come_at_once() -> None:
    threads, _ = made()

    async def some(first: int) -> list[int]:
        return [await threads.call(functools.partial(int, first + n)) for n in range(200)]

    found = await asyncio.wait_for(asyncio.gather(*(some(1_000 * n) for n in range(50))), PATIENCE)
    assert found == [[1_000 * n + each for each in range(200)] for n in range(50)]
    await until(lambda: threads._idle == running(threads))
    assert threads._queued == 0


async def test_an_error_leaves_its_thread_of_use() -> None:
    threads, _ = made()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await threads.call(lambda: 1 / 0)


async def test_idle_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    threads, _ = made()
    for _ in range(50):  # some come just when a thread gives up waiting
        assert await threads.call(lambda: 1) == 1
        await asyncio.sleep(0.02)
    await until(lambda: not threads._idle and not running(threads), "the end of the idle threads")
