"""Rows that any program inserts with plain SQL: delivered or dead with a reason, and their neighbours unhurt."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from fencepost import Dispatcher, Route
from fencepost.core.records import Message
from fencepost.publishers.base import Delivery
from lab.fuzz import values
from lab.fuzz.places import Places
from lab.fuzz.target import ACCEPTED, Case, Loop, Result, Target, failed, refused
from lab.fuzz.targets.travel import wires

MOST_ROUNDS = 3_000
MAX_ATTEMPTS = 3
LOOK = "SELECT status, outcome, last_error, payload::text, payload_bytes FROM outbox WHERE id = %s"
HEAD = """
SELECT 1 FROM outbox AS head JOIN outbox AS follower USING (queue, ordering_key)
WHERE follower.id = %s AND head.id < follower.id AND head.status = 'dead'
"""
LEFT = """
SELECT count(*) AS n FROM outbox
WHERE status IN ('pending', 'processing', 'blocked') AND available_at <= statement_timestamp()
"""
JSON_TEXTS = (
    *(
        "null",
        "1e400",
        '"\\ud800"',
        '"\\u0000"',
        '{"a":1,"a":2}',
        " [1 , 2]\n",
        "-0",
        "[" * 3_000 + "]" * 3_000,
        '"' + "x" * 200_000 + '"',
    ),
    *("9" * 5_000, '{"\\ud83d":1}', "{}", "{", "nan", "", "1 2", "\ufeff1"),
)
HEADERS = (
    *(
        "{}",
        '{"a":"b"}',
        '{"a":"1","a":"2"}',
        '{"":"x"}',
        '{"bad name":"x"}',
        '{"a":"\\ud800"}',
        '{"Host":"x"}',
        '{"é":"x"}',
        '{"a":1}',
    ),
    *(
        '{"a":"\\u0000"}',
        "[]",
        "null",
        '{"x":"' + "y" * 20_000 + '"}',
        '{"replay-of":"no uuid"}',
        '{"traceparent":"x\\r\\ny"}',
        "{}{}",
    ),
)


class Foreign(Target):
    name = "foreign"
    share = 1.5
    batch = 100

    def __init__(self) -> None:
        self._loop = Loop()
        self._wires = list(wires().values())
        self._published: dict[int, bytes] = {}

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        self._url = places.database("foreign")
        with self._loop.running(), psycopg.connect(self._url, autocommit=True, row_factory=dict_row) as self._conn:
            logging.disable()  # each dead row is a warning
            yield
            logging.disable(logging.NOTSET)

    _url: str
    _conn: psycopg.Connection[dict[str, Any]]

    def case(self, chance: Random) -> Case:
        row: dict[str, Any] = {"event_type": values.some_text(chance)}
        if values.often(chance, 0.3):
            row["payload_bytes"] = values.data(chance)
        else:
            is_odd = values.often(chance, 0.4)
            row["payload"] = (
                chance.choice(JSON_TEXTS) if is_odd else json.dumps(values.json_value(chance), ensure_ascii=False)
            )
        makers: dict[str, Callable[[], Any]] = {
            "headers": lambda: chance.choice(HEADERS),
            "aggregate_type": lambda: values.text(chance),
            "aggregate_id": lambda: values.text(chance),
            "ordering_key": lambda: values.text(chance) + chance.choice(("", "x" * 2_000)),
            "queue": lambda: values.text(chance),
            "content_type": lambda: values.text(chance),
            "dedupe_key": lambda: values.text(chance) + str(chance.random()),
            "recovery_policy": lambda: chance.choice(("auto", "manual", "verify", "never")),
            "created_at": lambda: chance.choice(("1900-01-01", "8999-12-31", "2026-01-01", "infinity", "epoch")),
            "available_at": lambda: chance.choice(("1900-01-02", "2020-01-01", "-infinity", "now")),
            "attempts": lambda: chance.choice((0, 1, 999_999_999, -1)),
            "lease_version": lambda: chance.choice((0, 7, 4611686018427387904, -1)),
            "reclaim_count": lambda: chance.choice((0, 1, 1_000_000_000)),
            "lease_owner": lambda: values.text(chance),
            "last_error": lambda: values.text(chance),
        }
        row |= {name: make() for name, make in makers.items() if values.often(chance, 0.15)}
        return row

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        found: dict[int, Result] = {}
        rows: dict[int, int] = {}
        neighbours = []
        for number, case in enumerate(cases):
            try:
                rows[self._inserted(case)] = number
            except psycopg.Error as error:
                found[number] = refused(error)
            if number % 10 == 0:
                neighbours.append(self._inserted({"event_type": "plain", "payload": "{}"}))
        self._loop.run(self._dispatched)
        found |= {number: self._seen(row_id, cases[number]) for row_id, number in rows.items()}
        hurt = [row_id for row_id in neighbours if self._published.get(row_id) != b"{}"]
        if hurt:
            found = {number: failed("a neighbour was not delivered", hurt) for number in range(len(cases))}
        self._published.clear()
        self._conn.execute("TRUNCATE outbox")
        return [found[number] for number in range(len(cases))]

    def _inserted(self, case: Case) -> int:
        columns = {"event_type": "x", **case}
        if "payload" not in columns and "payload_bytes" not in columns:
            columns["payload"] = "1"
        query = sql.SQL("INSERT INTO outbox ({}) VALUES ({}) RETURNING id").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(sql.Placeholder() * len(columns))
        )
        row = self._conn.execute(query, list(columns.values())).fetchone()
        return int(row["id"]) if row else 0

    async def _dispatched(self) -> None:
        dispatcher = Dispatcher(
            self._url,
            [Route("*", self._publish)],
            backoff_base=timedelta(milliseconds=1),
            backoff_cap=timedelta(milliseconds=1),
            breaker_failures=0,
            max_attempts=MAX_ATTEMPTS,
        )
        async with dispatcher:
            for _ in range(MOST_ROUNDS):
                await dispatcher.dispatch_once()
                row = self._conn.execute(LEFT).fetchone()
                if row is not None and row["n"] == 0:
                    return

    async def _publish(self, message: Message, delivery: Delivery) -> None:
        """Go every way that there is, as far as it goes without a broker, and back."""
        wire = self._wires[message.id % len(self._wires)]
        sent = wire.sent(message, delivery)
        if wire.read(sent).body != message.payload:
            raise AssertionError("another body was read")
        self._published[message.id] = message.payload

    def _seen(self, row_id: int, case: Case) -> Result:
        row = self._conn.execute(LOOK, [row_id]).fetchone()
        if row is None:
            return failed("gone")
        if row["status"] == "done":
            body = row["payload"].encode() if row["payload_bytes"] is None else bytes(row["payload_bytes"])
            return ACCEPTED if self._published.get(row_id) == body else failed("another body")
        if row["status"] == "dead":
            # Over its limit as it was claimed, it was never published, and has no error but its own.
            is_unpublished = row["outcome"] == "exhausted" and row["last_error"] == case.get("last_error")
            is_refused = row["outcome"] == "permanent" and row["last_error"]
            is_unknown = row["outcome"] == "unknown_outcome" and case.get("recovery_policy") == "verify"
            if is_unpublished or is_refused or is_unknown:
                return refused(f"dead {row['outcome']}")
            return failed("dead for no good reason", f"{row['outcome']}: {row['last_error']}")
        if self._conn.execute(HEAD, [row_id]).fetchone():
            return refused("behind a dead head")  # as it should be, until a person decides
        return failed(f"left {row['status']}", row["last_error"])
