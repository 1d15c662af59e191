"""What is looked at all the time: the database's clock, and who holds a transaction or a row open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lab.checker.recording import CLOCK, SAMPLE, Recorder

SAMPLE_SECONDS = 0.3
CLOCK_SECONDS = 1.0

# Rows that are leased, and cannot be locked by us at this moment; the locks are gone with the statement.
LOCKED = """
    WITH leased AS (SELECT id FROM outbox WHERE done_at IS NULL AND status = 'processing'),
         free AS (SELECT id FROM outbox WHERE id IN (SELECT id FROM leased) FOR SHARE SKIP LOCKED)
    SELECT id FROM leased EXCEPT SELECT id FROM free
"""


class Watch:
    """A thread that asks the server, whichever it is by now, and goes on where it does not answer."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], recorder: Recorder) -> None:
        self._connect, self._recorder = connect, recorder
        self._stopped, self._clock_wanted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_clock(self) -> None:
        """Have the clock written down as soon as it can be asked."""
        self._clock_wanted.set()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as conn:
                    conn.execute("SET statement_timeout = '2s'")
                    self._watch(conn)
            except Exception:  # noqa: BLE001 - a server that is down or on its way; the next try will tell
                self._stopped.wait(0.05)

    def _watch(self, conn: psycopg.Connection[Any]) -> None:
        asked_at = 0.0
        while not self._stopped.is_set():
            if self._clock_wanted.is_set() or time.monotonic() - asked_at > CLOCK_SECONDS:
                self._clock_wanted.clear()
                asked_at = time.monotonic()
                self._clock(conn)
            self._sample(conn)
            self._stopped.wait(SAMPLE_SECONDS)

    def _clock(self, conn: psycopg.Connection[Any]) -> None:
        before = time.monotonic_ns()
        row = conn.execute(CLOCK.encode()).fetchone()
        after = time.monotonic_ns()
        if row is not None:
            self._recorder.write("clock", at=(before + after) // 2, database=row[0])

    def _sample(self, conn: psycopg.Connection[Any]) -> None:
        asked = time.monotonic_ns()
        found = conn.cursor(row_factory=dict_row).execute(SAMPLE.encode()).fetchall()
        locked = [row[0] for row in conn.execute(LOCKED.encode()).fetchall()]
        self._recorder.write("sample", open=found, locked=locked, asked=asked)
