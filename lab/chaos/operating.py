"""An operator: ``python -m lab.chaos.operating`` retries, skips, pauses, purges and changes limits until SIGTERM.

Most of it through the client; now and then by the command line, as a person would.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import psycopg

from fencepost import FencepostError, Outbox
from lab.chaos.client import Client
from lab.chaos.tasks import jobs
from lab.chaos.terms import MAX_ATTEMPTS, PURGE_LIMIT, QUEUES, RETENTION, ROOT, Told, seconds

PAUSE = 0.3
BY_COMMAND_LINE = 0.02
CLI_SECONDS = 20.0


class Operator(Client):
    """The operating process."""

    SURVIVES = (
        psycopg.Error,
        FencepostError,
    )  # what is refused to an operator, such as a row that changed meanwhile

    def __init__(self, told: Told) -> None:
        super().__init__(told, PAUSE)
        self._outbox = Outbox(allow_autocommit=True)

    def once(self, conn: psycopg.Connection[Any]) -> None:
        if self.told.is_calm:
            self._tidy_up(conn)
            return
        draw = self.random.random()
        if draw < 0.6:
            self._dead_messages(conn)
        elif draw < 0.85:
            self._failed_jobs(conn)
        elif draw < 0.90:
            self._pause_or_resume(conn)
        elif draw < 0.95:
            self._purge(conn)
        else:
            self._limit(conn)

    def _dead_messages(self, conn: psycopg.Connection[Any]) -> None:
        dead = self._outbox.list_dead(conn, limit=20)
        if not dead:
            return
        ids = [each.message.id for each in dead if self.random.random() < 0.5][:5] or [dead[0].message.id]
        action = "retry" if self.random.random() < 0.75 else "skip"
        self.recorder.write("operator", action=action, ids=ids)
        if self.random.random() < BY_COMMAND_LINE:
            self._command_line("dead", action, *map(str, ids))
            return
        change = self._outbox.retry_dead if action == "retry" else self._outbox.skip_dead
        with conn.transaction():
            change(conn, ids, actor=self.told.process)

    def _failed_jobs(self, conn: psycopg.Connection[Any]) -> None:
        ids = [each.job.id for each in jobs.list_jobs(conn, status="failed", limit=5).jobs]
        if not ids:
            return
        self.recorder.write("operator", action="retry_job", ids=ids)
        with conn.transaction():
            jobs.retry(conn, ids, actor=self.told.process)

    def _pause_or_resume(self, conn: psycopg.Connection[Any]) -> None:
        queue = self.random.choice(QUEUES)
        self.recorder.write("operator", action="pause", ids=[])
        with conn.transaction():
            self._outbox.pause_queue(conn, queue, actor=self.told.process, reason="chaos")
        time.sleep(self.random.random() * 0.5)  # it is paused for as long
        self._resume(conn, queue)

    def _resume(self, conn: psycopg.Connection[Any], queue: str) -> None:
        self.recorder.write("operator", action="resume", ids=[])
        with conn.transaction():
            self._outbox.resume_queue(conn, queue, actor=self.told.process)

    def _limit(self, conn: psycopg.Connection[Any]) -> None:
        """Change how many attempts a queue has: lower, higher, or the workers' own again."""
        queue, limit = self.random.choice(QUEUES), self.random.choice([3, MAX_ATTEMPTS, 8])
        self.recorder.write("operator", action="limit", ids=[])
        with conn.transaction():
            self._outbox.set_queue(conn, queue, actor=self.told.process, max_attempts=limit)

    def _purge(self, conn: psycopg.Connection[Any]) -> None:
        self.recorder.write("operator", action="purge", ids=[])
        with conn.transaction():
            self._outbox.purge(conn, seconds(RETENTION), limit=PURGE_LIMIT)

    def _tidy_up(self, conn: psycopg.Connection[Any]) -> None:
        """Resume every queue and retry whatever is dead, until nothing is left."""
        for queue in QUEUES:
            if any(each.queue == queue and each.paused for each in self._outbox.queues(conn)):
                self._resume(conn, queue)
        if dead := [each.message.id for each in self._outbox.list_dead(conn, limit=100)]:
            self.recorder.write("operator", action="retry", ids=dead)
            with conn.transaction():
                self._outbox.retry_dead(conn, dead, actor=self.told.process)
        if failed := [each.job.id for each in jobs.list_jobs(conn, status="failed", limit=100).jobs]:
            self.recorder.write("operator", action="retry_job", ids=failed)
            with conn.transaction():
                jobs.retry(conn, failed, actor=self.told.process)

    def _command_line(self, *words: str) -> None:
        argv = [sys.executable, "-m", "fencepost", *words]
        with contextlib.suppress(subprocess.TimeoutExpired):  # a person would have lost patience, too
            subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=CLI_SECONDS, check=False)


if __name__ == "__main__":
    Operator(Told.from_environment()).run()
