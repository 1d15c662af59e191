"""Enqueues at random until SIGTERM: ``python -m tests.order.producer URL SEED``.

Transactions of one or several keys, with savepoints and rollbacks; what committed is noted in them too.
"""

from __future__ import annotations

import random
import signal
import sys
from typing import Any

import psycopg

from fencepost import NewMessage, Outbox

KEYS = 12
ROLLED_BACK = 0.1


class _Undo(Exception):
    """Rolls a transaction or a savepoint back."""


class Producer:
    """One producing process."""

    def __init__(self, url: str, seed: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._random = random.Random(seed)  # noqa: S311 - a campaign that can be repeated
        self._outbox = Outbox()
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: Any) -> None:
        self._stopped = True

    def run(self) -> None:
        while not self._stopped:
            try:
                with self._conn.transaction():
                    self._transaction()
                    if self._random.random() < ROLLED_BACK:
                        raise _Undo
            except _Undo:
                pass
            # The load that the workers can follow, so that the queue neither runs dry nor grows for ever.
            self._conn.execute("SELECT pg_sleep(%s)", [self._random.random() * 0.06])

    def _transaction(self) -> None:
        kind = self._random.random()
        if kind < 0.4:
            self._enqueue(self._messages(1))
        elif kind < 0.8:
            self._enqueue(self._messages(self._random.randrange(2, 12)))
        else:
            # One key only: several calls of one transaction would have to name theirs in sorted order.
            key = self._key() or "key 0"
            self._enqueue(self._messages(2, key))
            try:
                with self._conn.transaction():
                    self._enqueue(self._messages(2, key))
                    if self._random.random() < 0.5:
                        raise _Undo
            except _Undo:
                pass
            self._enqueue(self._messages(1, key))

    def _messages(self, many: int, key: str | None = None) -> list[NewMessage]:
        return [NewMessage(event_type="e", payload=n, ordering_key=key or self._key()) for n in range(many)]

    def _key(self) -> str | None:
        """A few hot keys, many cool ones, and sometimes none."""
        draw = self._random.random()
        if draw < 0.1:
            return None
        return f"key {min(int(self._random.expovariate(0.4)), KEYS)}"

    def _enqueue(self, messages: list[NewMessage]) -> None:
        for receipt in self._outbox.enqueue_many(self._conn, messages):
            self._conn.execute("INSERT INTO committed VALUES (%s)", [receipt.id])


if __name__ == "__main__":
    Producer(*sys.argv[1:3]).run()
