"""The scripts: what a dispatcher and a worker do in their lives, in one short run each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from fencepost import (
    Defer,
    Delivery,
    Dispatcher,
    Job,
    Jobs,
    Message,
    NewMessage,
    Outbox,
    Permanent,
    Retryable,
    Route,
    Worker,
)
from fencepost.runtime import reaper
from lab.crashes.runtime import Saboteur, at_work
from lab.crashes.world import World

SLOW = 0.45
"""The part of a lease that one publish and one job take: past their first heartbeat."""

QUICK: dict[str, Any] = {
    "poll_interval": timedelta(milliseconds=50),
    "grace": timedelta(seconds=5),
    "owner": "w1",
    "notify": False,
}
BACKOFF: dict[str, Any] = {"backoff_base": timedelta(milliseconds=1), "backoff_cap": timedelta(milliseconds=2)}

EXPIRED = "UPDATE {table} SET {column} = now() - interval '1 s' WHERE status = 'processing'"

# As if somebody had deleted the message before them by hand.
STRANDED = (
    "UPDATE outbox SET status = 'blocked', available_at = '9999-12-31 0:0+0' WHERE ordering_key = 'stranded'"
)
OPEN_BREAKER = (
    "INSERT INTO outbox_queue (queue, breaker_version, breaker_opened_at, breaker_probe_at)"
    " VALUES ('down', 1, now(), now())"
)


class Notes:
    """What was published or run, in the order in which that was begun: in a file, which outlives a process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()
        self.seen: Counter[int] = Counter(int(row_id) for row_id in file.read_text().split())

    def clear(self) -> None:
        self._file.write_text("")
        self.seen.clear()

    def add(self, row_id: int) -> None:
        with self._file.open("a") as file:
            file.write(f"{row_id}\n")
        self.seen[row_id] += 1

    def firsts(self) -> list[int]:
        """Return what was begun, each once, by when it was begun first."""
        return list(dict.fromkeys(int(row_id) for row_id in self._file.read_text().split()))


class _Script:
    """What both share: the tables, looked at over a connection of their own."""

    table = ""
    open_states: tuple[str, ...] = ()
    saboteur: Saboteur

    def __init__(self, url: str, notes: Path, lease: timedelta) -> None:
        self.world = World(url)
        self.lease = lease
        self.outbox = Outbox(allow_autocommit=True)
        self.notes = Notes(notes)

    @property
    def seen(self) -> Counter[int]:
        return self.notes.seen

    def close(self) -> None:
        self.world.close()

    def is_over(self) -> bool:
        query = f"SELECT count(*) FROM {self.table} WHERE status = ANY (%s)"  # noqa: S608 - our own name
        return self.world.db.execute(query, [list(self.open_states)]).fetchone() == (0,)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.world.db.execute(query).fetchall()


def _ends(event: str, *, is_first: bool) -> None:
    """End a publish or run: the first time as the kind of event says."""
    if event == "permanent":
        raise Permanent("never")
    if is_first and event == "retry":
        raise Retryable("not yet")
    if is_first and event == "defer":
        raise Defer(timedelta(milliseconds=10), "not yet")


class Dispatching(_Script):
    """Messages in order and not, each kind of result, expansion, a ledger, a rate, a breaker, what is lost."""

    table = "outbox"
    open_states = ("pending", "processing", "blocked")

    def prepare(self) -> None:
        self.world.empty()
        self.notes.clear()
        db, outbox = self.world.db, self.outbox
        outbox.set_queue(db, "kept", "op", ledger=True)
        outbox.set_queue(db, "rated", "op", rate=1000.0)
        outbox.set_queue(db, "a", "op", sequenced=True)
        self._lose(2, "manual", recovery="manual")
        self._lose(2, "plain")
        for event in ("plain", "plain", "slow", "retry", "defer", "permanent"):
            self._add(1, event)
        self._add(3, "plain", ordering_key="k")
        self._add(2, "plain", queue="kept")
        self._add(2, "retry", queue="kept", ordering_key="k")
        self._add(2, "plain", queue="rated")
        self._add(2, "fan", ordering_key="f")
        self._add(2, "plain", queue="down")
        self._add(2, "plain", ordering_key="stranded")
        db.execute(STRANDED)
        db.execute(OPEN_BREAKER)

    def _add(self, count: int, event: str, **options: Any) -> None:
        messages = [NewMessage(event_type=event, payload={}, **options) for _ in range(count)]
        self.outbox.enqueue_many(self.world.db, messages)

    def _lose(self, count: int, event: str, **options: Any) -> None:
        """Messages of a worker that is no more."""
        self._add(count, event, **options)
        with self.world.db.transaction():
            self.outbox.claim(self.world.db, owner="gone", batch=count, lease=self.lease)
        self.world.db.execute(EXPIRED.format(table="outbox", column="lease_until"))

    @contextlib.asynccontextmanager
    async def running(self, url: str) -> AsyncIterator[None]:
        pause, reaper.STRANDED_PAUSE = reaper.STRANDED_PAUSE, 0.1
        try:
            async with at_work(self._dispatcher(url)):
                yield
        finally:
            reaper.STRANDED_PAUSE = pause

    def _dispatcher(self, url: str) -> Dispatcher:
        return Dispatcher(
            url,
            [Route("fan", to=["a", "b"]), Route("*", self.publish)],
            destinations={"a": self.publish, "b": self.publish},
            lease=self.lease,
            publish_timeout=0.8 * self.lease,
            breaker_failures=0,
            **QUICK,
            **BACKOFF,
        )

    async def publish(self, message: Message, delivery: Delivery) -> None:
        with self.saboteur.around_handler(message.event_type):
            self.notes.add(message.id)
            if message.event_type == "slow":
                await asyncio.sleep(SLOW * self.lease.total_seconds())
            _ends(message.event_type, is_first=self.seen[message.id] == 1)

    def problems(self) -> list[str]:
        found = self._of_order()
        for row_id, event, status, outcome, attempts, token in self._rows(
            "SELECT id, event_type, status, outcome, attempts, lease_version FROM outbox ORDER BY id"
        ):
            who = f"message {row_id} ({event}) is {status} ({outcome}) after {attempts} attempts"
            if outcome not in _EXPECTED[event]:
                found.append(who)
            if not 0 < attempts <= min(token, 4):
                found.append(f"{who}, under token {token}")
            if outcome == "delivered" and not 1 <= self.seen[row_id] <= 3:
                found.append(f"{who}, and was published {self.seen[row_id]} times")
        return found + self._of_copies() + self._of_the_ledger()

    def _of_order(self) -> list[str]:
        keys = {
            row_id: (queue, key)
            for row_id, queue, key in self._rows(
                "SELECT id, queue, ordering_key FROM outbox WHERE ordering_key <> ''"
            )
        }
        first: dict[tuple[str, str], list[int]] = {}
        for row_id in self.notes.firsts():
            if row_id in keys:
                first.setdefault(keys[row_id], []).append(row_id)
        return [f"the first publishes of {key} were {ids}" for key, ids in first.items() if ids != sorted(ids)]

    def _of_copies(self) -> list[str]:
        rows = self._rows(
            "SELECT queue, count(*), count(DISTINCT message_id) FROM outbox WHERE routed GROUP BY queue"
        )
        return [] if sorted(rows) == [("a", 2, 2), ("b", 2, 2)] else [f"the expansion made {sorted(rows)}"]

    def _of_the_ledger(self) -> list[str]:
        rows = self._rows(
            "SELECT o.id FROM outbox AS o WHERE o.queue = 'kept' AND NOT EXISTS ("
            "SELECT FROM outbox_attempt AS a"
            " WHERE a.row_id = o.id AND a.token = o.lease_version::text AND a.result = 'delivered')"
        )
        return [f"the ledger does not say that message {row_id} was delivered" for (row_id,) in rows]


_EXPECTED = {
    "plain": ("delivered",),
    "manual": ("unknown_outcome",),
    "slow": ("delivered",),
    "retry": ("delivered",),
    "defer": ("delivered",),
    "permanent": ("permanent",),
    "fan": ("expanded", "delivered"),
}


TICKS = 3
"""That were missed, at least."""


class Working(_Script):
    """Jobs with and without limits, results of each kind, a ledger, a schedule, expired leases."""

    table = "outbox_job"
    open_states = ("queued", "processing")

    def __init__(self, url: str, notes: Path, lease: timedelta) -> None:
        super().__init__(url, notes, lease)
        self.jobs = Jobs(allow_autocommit=True)
        times: dict[str, Any] = {"lease": lease, **BACKOFF}
        for name in ("plain", "slow", "retry", "defer", "permanent"):
            self.jobs.task(name, **times)(self.handle)
        self.jobs.task("manual", recovery="manual", **times)(self.handle)
        self.jobs.task("keyed", max_running_per_key=1, **times)(self.handle)
        self.jobs.task("kept", ledger=True, **times)(self.handle)
        self.jobs.task("tick", **times)(self.handle)
        self.jobs.schedule("s", "* * * * *", "tick", catch_up="all")
        self._newest = 0

    def prepare(self) -> None:
        self.world.empty()
        self.notes.clear()
        for task in ("plain", "manual"):
            self._enqueue(task)
        self._lose()
        for task in ("plain", "slow", "retry", "defer", "permanent", "kept", "kept"):
            self._enqueue(task)
        for _ in range(2):
            self._enqueue("keyed", key="k")
        self.world.db.execute(
            "INSERT INTO outbox_cron (name, task, expression, timezone, last_tick, seen_at)"
            " VALUES ('s', 'tick', '* * * * *', 'UTC', now() - %s * interval '1 min', now())",
            [TICKS],
        )

    def _enqueue(self, task: str, **options: Any) -> None:
        self.jobs.enqueue(self.world.db, task, {}, **options)

    def _lose(self) -> None:
        self.world.db.execute(
            "UPDATE outbox_job SET status = 'processing', attempts = 1, fence = 1,"
            " attempt_token = gen_random_uuid(), reserved_by = 'gone', reserved_at = now(), heartbeat_at = now(),"
            " lease_expires_at = now() - interval '1 s'"
        )

    def running(self, url: str) -> contextlib.AbstractAsyncContextManager[object]:
        return at_work(Worker(url, self.jobs, **QUICK))

    async def handle(self, job: Job) -> None:
        with self.saboteur.around_handler(job.task):
            self.notes.add(job.id)
            if job.task == "slow":
                await asyncio.sleep(SLOW * self.lease.total_seconds())
            _ends(job.task, is_first=self.seen[job.id] == 1)

    def is_over(self) -> bool:
        # A tick of the next minute may come at any time: what comes after this look is none of this script's.
        self._newest = self._rows("SELECT max(id) FROM outbox_job")[0][0]
        moved = self._rows("SELECT last_tick > now() - interval '90 s' FROM outbox_cron")
        return super().is_over() and moved == [(True,)]

    def _ticks(self) -> list[str]:
        return [
            text for (text,) in self._rows("SELECT headers->>'scheduled-for' FROM outbox_job WHERE task = 'tick'")
        ]

    def problems(self) -> list[str]:
        ticks = self._ticks()
        found = [f"ticks were enqueued twice: {ticks}"] if len(set(ticks)) < len(ticks) else []
        if len(ticks) < TICKS:
            found.append(f"ticks are missing: {ticks}")
        for row_id, task, status, outcome, attempts, fence in self._rows(
            "SELECT id, task, status, outcome, attempts, fence FROM outbox_job ORDER BY id"
        ):
            if row_id > self._newest:
                break
            expected = {"permanent": "permanent", "manual": "unknown_outcome"}.get(task, "completed")
            who = f"job {row_id} ({task}) is {status} ({outcome}) after {attempts} attempts"
            if outcome != expected or not 0 < attempts <= min(fence, 4):
                found.append(f"{who}, fence {fence}")
            if outcome == "completed" and not 1 <= self.seen[row_id] <= 3:
                found.append(f"{who}, and was run {self.seen[row_id]} times")
        return found + self._of_the_ledger()

    def _of_the_ledger(self) -> list[str]:
        rows = self._rows(
            "SELECT j.id FROM outbox_job AS j WHERE j.task = 'kept' AND NOT EXISTS ("
            "SELECT FROM outbox_attempt AS a WHERE a.kind = 'job'"
            " AND a.row_id = j.id AND a.token = j.fence::text AND a.result = 'completed')"
        )
        return [f"the ledger does not say that job {row_id} was completed" for (row_id,) in rows]


SCRIPTS: tuple[type[Dispatching | Working], ...] = (Dispatching, Working)
