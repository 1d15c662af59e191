"""What a producer and an operator share: a connection that is made anew, and a loop that goes on until SIGTERM."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import psycopg

from lab.chaos.terms import Told
from lab.checker.recording import Recorder


class Client:
    """A process that does one thing after another on a connection of its own, whatever becomes of that.

    Args:
        told: what the run tells it.
        pause: seconds between two things, at most.
    """

    SURVIVES: tuple[type[Exception], ...] = (psycopg.Error,)
    """What is no reason to end: anything else is a finding."""

    def __init__(self, told: Told, pause: float) -> None:
        self.told, self._pause = told, pause
        self.random = random.Random(told.seed)
        self.recorder = Recorder(told.folder, told.process)
        self._conn: psycopg.Connection[Any] | None = None
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Go on until told to stop."""
        self.recorder.write("ready")
        while not self._stopped:
            try:
                self.once(self._connected())
            except self.SURVIVES:
                if self._conn is not None:
                    self._conn.close()
            time.sleep(self.random.random() * self._pause)  # the rhythm of the load, not a wait for something

    def once(self, conn: psycopg.Connection[Any]) -> None:
        """Do one thing."""
        raise NotImplementedError

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _connected(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(
                self.told.store, autocommit=True, connect_timeout=2, tcp_user_timeout=2000
            )
            self._conn.execute("SET statement_timeout = '3s'")
        return self._conn
