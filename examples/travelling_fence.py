"""A worker is frozen in the middle of a publish, and its late write is refused by the receiver.

``python examples/travelling_fence.py postgresql://…`` on a database that may be filled (the tables ``outbox…`` and
``ledger``); with ``embedded:`` instead it starts a PostgreSQL of its own (``pip install 'fencepost[embedded]'``).

Two dispatchers, each a process, serve one outbox. The first freezes itself with its message claimed and not yet
written. Its lease runs out, the second one takes the message over, with a newer token, and delivers it. Then the
first is woken up, and goes on as if nothing had happened: the receiver refuses its token, the outbox its result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta

import psycopg

from fencepost import Delivery, Dispatcher, DispatcherSettings, Fence, Message, Outbox, Route, message_resource
from fencepost.embedded import open_store

FREEZES = "first"
LEDGER = "CREATE TABLE IF NOT EXISTS ledger (message_id uuid, written_by text, token bigint)"


class Ledger:
    """A receiver with a database of its own, as a publisher sees it."""

    fence = Fence("ledger")

    def __init__(self, url: str, worker: str) -> None:
        self._url, self._worker = url, worker
        self.has_answered = threading.Event()

    def publish(self, message: Message, delivery: Delivery) -> None:
        """Write to the ledger, unless a newer holder of the message did."""
        say(self._worker, f"publishes under token {delivery.token}")
        if self._worker == FREEZES:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # the whole process, at this very line
            say(self._worker, "wakes up, and writes")
        with psycopg.connect(self._url) as conn:
            answer = self.fence.admit(conn, message_resource(message.message_id), delivery.token)
            if answer:
                conn.execute(
                    "INSERT INTO ledger VALUES (%s, %s, %s)", [message.message_id, self._worker, delivery.token]
                )
        say(self._worker, "was let in" if answer else f"was refused: token {answer.newest} was there before")
        self.has_answered.set()


def say(who: str, what: str) -> None:
    """Tell a step of the story."""
    print(f"{who}: {what}", flush=True)  # noqa: T201 - a program that tells what it does


async def work(url: str, worker: str) -> None:
    """Dispatch until the one message of this story has come to its end."""
    settings = DispatcherSettings(owner=worker, lease=timedelta(seconds=3), publish_timeout=timedelta(seconds=2))
    ledger = Ledger(url, worker)
    async with Dispatcher(url, [Route("*", ledger)], settings=settings) as dispatcher:
        handled = 0
        while not handled:
            handled = await dispatcher.dispatch_once()
            await asyncio.sleep(0.05)
        await asyncio.to_thread(ledger.has_answered.wait, 30)  # its time-out may have ended the publish before
        lost = dispatcher.counters.lost_leases
        say(worker, "lost its lease: the outbox took no result from it" if lost else "delivered the message")


def tell(url: str) -> None:
    """Play the story with two real processes."""
    with psycopg.connect(url) as conn:
        Outbox().migrate(conn)
        conn.execute(LEDGER)
        sent = Outbox().enqueue(conn, "ledger.entry", {"amount": 100})
    workers = []
    try:
        first = start(url, FREEZES)
        workers.append(first)
        _, status = os.waitpid(first.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise SystemExit("the first worker ended before it froze")
        say("story", "the first worker is frozen, its lease runs out")
        second = start(url, "second")
        workers.append(second)
        second.wait(60)
        say("story", "the first worker is woken up")
        first.send_signal(signal.SIGCONT)
        first.wait(60)
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.kill()
            worker.wait()
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT written_by, token FROM ledger WHERE message_id = %s", [sent.message_id])
        say("story", f"in the ledger stands {rows.fetchall()}")


def start(url: str, worker: str) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, url, worker])  # noqa: S603 - this very program


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(work(*sys.argv[1:]))
    elif len(sys.argv) != 2:
        sys.exit("usage: python examples/travelling_fence.py postgresql://… (or embedded:)")
    else:
        with open_store(sys.argv[1]) as store:
            tell(store)
