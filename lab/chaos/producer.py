"""A producer: ``python -m lab.chaos.producer`` enqueues until SIGTERM, whatever becomes of its connection.

Transactions of one or several messages and jobs, with savepoints and rollbacks, and contents of every kind; and
now and then a content that must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from fencepost import InvalidMessage, JsonText, Outbox
from fencepost.core.draft import MAX_PAYLOAD_BYTES
from lab.chaos.client import Client
from lab.chaos.tasks import TASKS, jobs
from lab.chaos.terms import MESSAGES, QUEUES, Told
from lab.checker.recording import digest, headers_digest

KEYS = 10
PAUSE = 0.12
"""Seconds between two transactions, at most."""
BAD = {"poison": 0.0005, "blocking": 0.002, "slow": 0.02, "failing": 0.06, "permanent": 0.006}
BINARY = "application/octet-stream"
BAD_NAMES = {"blocking": "slow"}

_NUMBER = "SELECT coalesce(max(number), 0) + 1 FROM lab.business WHERE ordering_key = %s"
_BUSINESS = "INSERT INTO lab.business (message_id, ordering_key, number) VALUES (%s, %s, %s)"
_JOB_BUSINESS = "INSERT INTO lab.job_business (job_id) VALUES (%s)"


class _Undo(Exception):
    """Rolls a transaction or a savepoint back."""


class Transaction:
    """What one transaction has written so far, and what of it was rolled back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[str] = []
        self.jobs: list[str] = []


class Producer(Client):
    """One producing process."""

    def __init__(self, told: Told) -> None:
        super().__init__(told, PAUSE)
        self._outbox = Outbox()
        self._count = 0

    def once(self, conn: psycopg.Connection[Any]) -> None:
        """Make one transaction, and write down how it ended."""
        self._count += 1
        open_one = Transaction(f"{self.told.process}-{self._count}")
        ending = "commit_unknown"
        try:
            with conn.transaction():
                try:
                    self._fill(conn, open_one)
                    if self.random.random() < 0.12:
                        raise _Undo
                except BaseException:
                    ending = "rollback"  # no COMMIT will be sent
                    raise
            ending = "commit"
        except _Undo:
            pass
        finally:
            self._ended(ending, open_one)

    def _ended(self, how: str, transaction: Transaction) -> None:
        if transaction.messages:
            self.recorder.write(how, message_ids=transaction.messages)
        if transaction.jobs:
            self.recorder.write(f"job_{how}", job_ids=transaction.jobs)

    def _fill(self, conn: psycopg.Connection[Any], open_one: Transaction) -> None:
        # One key only: several calls of one transaction would have to name theirs in sorted order.
        queue = self.random.choice(QUEUES)
        key = self._key(queue)
        draw = self.random.random()
        self._message(conn, open_one, queue, key)
        if draw < 0.3:
            for _ in range(self.random.randrange(1, 6)):
                self._message(conn, open_one, queue, key)
        elif draw < 0.5:
            self._savepoint(conn, open_one, lambda part: self._message(conn, part, queue, key))
            self._message(conn, open_one, queue, key)
        elif draw < 0.7:
            self._job(conn, open_one)
        elif draw < 0.75:
            self._refused(conn, open_one, queue, key)

    def _savepoint(
        self, conn: psycopg.Connection[Any], outer: Transaction, fill: Callable[[Transaction], None]
    ) -> None:
        part = Transaction(outer.name)
        try:
            with conn.transaction():
                fill(part)
                if self.random.random() < 0.5:
                    raise _Undo
        except _Undo:
            self._ended("rollback", part)
            return
        except BaseException:
            outer.messages += part.messages  # the whole of it is over
            raise
        outer.messages += part.messages

    def _message(self, conn: psycopg.Connection[Any], open_one: Transaction, queue: str, key: str | None) -> None:
        message_id = self._uuid()
        kind = self._kind()
        # A poison message that others wait behind would stop a hot key for as long as it is alone.
        own_key = None if kind in ("poison", "permanent", "blocking") else key
        payload, raw, content_type = self._content()
        headers = {"n": str(self._count), "x-text": "wörth %"} if self.random.random() < 0.3 else {}
        self._outbox.enqueue(
            conn,
            kind,
            payload,
            message_id=message_id,
            queue=queue,
            ordering_key=own_key,
            headers=headers,
            content_type=content_type,
        )
        number = None
        if own_key is not None:
            row = conn.execute(_NUMBER, [own_key]).fetchone()
            number = None if row is None else int(row[0])
        conn.execute(_BUSINESS, [message_id, own_key, number])
        bad = {} if kind == "plain" else {"bad": BAD_NAMES.get(kind, kind)}
        self.recorder.write(
            "enqueue",
            message_id=str(message_id),
            queue=queue,
            ordering_key=own_key,
            number=number,
            payload=digest(raw),
            headers=headers_digest(headers),
            transaction=open_one.name,
            **bad,
        )
        open_one.messages.append(str(message_id))

    def _job(self, conn: psycopg.Connection[Any], open_one: Transaction) -> None:
        task, lane, recovery = self.random.choice(TASKS)
        key = f"k{self.random.randrange(4)}" if lane else None
        job_id = self._uuid()
        jobs.enqueue(conn, task, {"n": self._count}, job_id=job_id, key=key)
        conn.execute(_JOB_BUSINESS, [job_id])
        self.recorder.write(
            "job_enqueue", job_id=str(job_id), task=task, lane=key, recovery=recovery, transaction=open_one.name
        )
        open_one.jobs.append(str(job_id))

    def _refused(self, conn: psycopg.Connection[Any], open_one: Transaction, queue: str, key: str | None) -> None:
        """Enqueue what must be refused, and go on in the same transaction."""
        contents: dict[str, Any] = {
            "NUL": {"text": "a\0b"},
            "lone surrogate": {"text": "\ud800"},
            "not a number": float("nan"),
            "giant": b"x" * (MAX_PAYLOAD_BYTES + 1),
        }
        why = self.random.choice(sorted(contents))
        message_id = self._uuid()
        try:
            content_type = BINARY if why == "giant" else None
            self._outbox.enqueue(
                conn, "plain", contents[why], message_id=message_id, queue=queue, content_type=content_type
            )
            raise AssertionError(f"{why} was not refused")
        except InvalidMessage:
            self.recorder.write("refused", message_id=str(message_id), why=why)
            self._message(conn, open_one, queue, key)

    def _content(self) -> tuple[Any, bytes, str | None]:
        """Return a payload, the bytes that must arrive, and its content type where enqueue must be told."""
        draw = self.random.random()
        if draw < 0.7:
            shown = "ü€\\u0001 " * self.random.randrange(4)
            text = f'{{"n": {self._count}, "text":"{shown}"}}'
            return JsonText(text), text.encode(), None
        if draw < 0.97:
            raw = self.random.randbytes(self.random.randrange(0, 300))
        else:
            raw = self.random.randbytes(200_000)
        return raw, raw, BINARY

    def _kind(self) -> str:
        if MESSAGES != "mixed":
            return MESSAGES
        draw = self.random.random()
        for kind, share in BAD.items():
            draw -= share
            if draw < 0:
                return kind
        return "plain"

    def _key(self, queue: str) -> str | None:
        """A few hot keys, many cool ones, and often none; of one queue only, since it is numbered by key."""
        draw = self.random.random()
        return None if draw < 0.3 else f"{queue} {min(int(self.random.expovariate(0.4)), KEYS)}"

    def _uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)


if __name__ == "__main__":
    Producer(Told.from_environment()).run()
