"""The heartbeat's thread by itself: what it renews, what it tells, and when it stops, over a real connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

from fencepost.core.operation import Operation
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import Held, Holding
from fencepost.runtime.link import Limits
from fencepost.store.catalog import Catalog
from tests.runtime.box import until
from tests.runtime.holdings import BEAT, holding

EVERY = 0.04
Renew = Callable[[Sequence[Holding], timedelta], Operation[frozenset[int]]]


def due(row_id: int = 1) -> Holding:
    """A row whose heartbeat is due by now, and whose lease has not ended."""
    return holding(row_id, sent_at=time.monotonic() - BEAT)


@contextlib.asynccontextmanager
async def beating(
    url: str, held: Held[Holding], renew: Renew, **options: Any
) -> AsyncIterator[Heartbeat[Holding]]:
    limits = Limits.below(timedelta(minutes=1))
    settings: dict[str, Any] = {"frozen_after": 60.0, "limits": lambda: limits} | options
    heartbeat = Heartbeat(
        url,
        Catalog(),
        held=held,
        renew=renew,
        kind="row",
        every=lambda: EVERY,
        on_stall=lambda: None,
        on_reconnect=lambda: None,
        **settings,
    )
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        await heartbeat.stop(30)
        assert not heartbeat._thread.is_alive()


async def test_a_lost_lease_is_told_and_its_window_stays_where_it_was(database18: str) -> None:
    held: Held[Holding] = Held()
    kept, lost = due(1), due(2)

    def renew(holdings: Sequence[Holding], lease: timedelta) -> Operation[frozenset[int]]:
        yield from ()
        return frozenset({lost.id})

    held.add([kept, lost])
    before = lost.window
    async with beating(database18, held, renew):
        await until(lambda: lost.lost)
    assert kept.window.sent_at > before.sent_at
    assert lost.window == before


async def test_a_failure_that_nobody_thought_of_ends_no_heartbeats(database18: str) -> None:
    held: Held[Holding] = Held()
    one = due()
    before = one.window
    failures: list[int] = []

    def renew(holdings: Sequence[Holding], lease: timedelta) -> Operation[frozenset[int]]:
        yield from ()
        if len(failures) < 2:
            failures.append(1)
            raise LookupError("a fault of ours")
        return frozenset()

    held.add([one])
    async with beating(database18, held, renew):
        await until(lambda: one.window != before)
    assert len(failures) == 2
    assert not one.lost


async def test_nothing_is_renewed_while_the_main_loop_is_frozen(database18: str) -> None:
    held: Held[Holding] = Held()
    renewed: list[int] = []

    def renew(holdings: Sequence[Holding], lease: timedelta) -> Operation[frozenset[int]]:
        yield from ()
        renewed.extend(each.id for each in holdings)
        return frozenset()

    limits = Limits.below(timedelta(minutes=1))
    begins, beats, has_beaten = threading.Event(), iter(range(5)), threading.Event()

    def look() -> Limits:
        """Asked by the thread before each beat."""
        if begins.is_set() and heartbeat._asked_at is not None and time.monotonic() - heartbeat._asked_at > 0.1:
            if next(beats, None) is None:
                has_beaten.set()
            elif not len(held):
                held.add([due()])
        return limits

    async with beating(database18, held, renew, limits=look, frozen_after=0.1) as heartbeat:
        begins.set()
        assert has_beaten.wait(30)  # blocks the event loop
        assert renewed == []
        await until(lambda: renewed)
