"""Runs workers, producers and an operator against each other, then has the history checked.

``python -m tests.order.campaign --seed 7 --seconds 60`` starts a server of its own; `make order` does the same.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from fencepost import Outbox
from tests.order.record import TABLES, Verdict, check

ROOT = Path(__file__).parents[2]
WORKERS, PRODUCERS = 4, 4
PATIENCE = 90.0
"""Seconds for the rest to be delivered once the producers have stopped."""


class Campaign:
    """One run against one migrated database."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._seed = url, seed
        self._random = random.Random(seed)  # noqa: S311 - a campaign that can be repeated
        self._outbox = Outbox(allow_autocommit=True)
        self._workers: list[subprocess.Popen[str]] = []
        self._started = 0
        self.crashes = self.freezes = self.retries = self.skips = 0

    def run(self, seconds: float) -> Verdict:
        with psycopg.connect(self._url, autocommit=True) as conn:
            self._conn = conn
            conn.execute(TABLES.encode())
            before = self._deadlocks()
            with self._processes() as producers:
                self._disturb(seconds, producers)
            verdict = check(conn)
            if self._deadlocks() != before:
                verdict.problems.append(f"deadlocks: {self._deadlocks() - before}")
            return verdict

    @contextmanager
    def _processes(self) -> Iterator[list[subprocess.Popen[str]]]:
        producers = [self._python("producer", f"{self._seed}-p{n}") for n in range(PRODUCERS)]
        self._workers = [self._worker(n) for n in range(WORKERS)]
        try:
            yield producers
        finally:
            for process in (*producers, *self._workers):
                process.kill()
                process.wait()

    def _worker(self, number: int) -> subprocess.Popen[str]:
        self._started += 1
        return self._python("worker", f"w{number}", f"{self._seed}-w{self._started}")

    def _python(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", f"tests.order.{module}", self._url, *arguments], cwd=ROOT, text=True
        )

    def _disturb(self, seconds: float, producers: list[subprocess.Popen[str]]) -> None:
        stop_at = time.monotonic() + seconds
        while time.monotonic() < stop_at:
            self._disturb_once(producers)
        for process in producers:
            process.terminate()
        for process in producers:
            assert process.wait(20) == 0, "a producer failed"
        self._conn.execute("CREATE TABLE calm ()")
        give_up_at = time.monotonic() + PATIENCE
        while self._open() and time.monotonic() < give_up_at:
            self._replace_the_dead()
            self._operate()
            time.sleep(0.05)

    def _disturb_once(self, producers: list[subprocess.Popen[str]]) -> None:
        time.sleep(0.05)  # the rhythm of the disturbances, not a wait for something
        self._replace_the_dead()
        self._operate()
        failed = [process.returncode for process in producers if process.poll() is not None]
        assert not failed, "a producer failed"
        draw = self._random.random()
        victim = self._random.choice(self._workers)
        if draw < 0.01:
            victim.kill()
        elif draw < 0.03:
            self._freeze(victim)

    def _freeze(self, victim: subprocess.Popen[str]) -> None:
        """Stop a worker for longer than its lease, while the others go on."""
        self.freezes += 1
        victim.send_signal(signal.SIGSTOP)
        resume_at = time.monotonic() + 1.5
        while time.monotonic() < resume_at:
            time.sleep(0.05)
            self._operate()
        victim.send_signal(signal.SIGCONT)

    def _replace_the_dead(self) -> None:
        for number, process in enumerate(self._workers):
            if process.poll() is not None:
                self.crashes += 1
                self._workers[number] = self._worker(number)

    def _operate(self) -> None:
        """An operator, who retries most dead messages and skips some."""
        for dead in self._outbox.list_dead(self._conn, limit=20):
            if self._random.random() < 0.8:
                self.retries += len(self._outbox.retry_dead(self._conn, [dead.message.id], actor="campaign"))
            else:
                with self._conn.transaction():
                    self.skips += len(self._outbox.skip_dead(self._conn, [dead.message.id], actor="campaign"))

    def _open(self) -> bool:
        row = self._conn.execute("SELECT EXISTS (SELECT FROM outbox WHERE done_at IS NULL)").fetchone()
        return row == (True,)

    def _deadlocks(self) -> int:
        query = (
            "SELECT pg_stat_clear_snapshot(), deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        row: Any = self._conn.execute(query).fetchone()
        return int(row[1])


def main() -> int:
    from tests.postgres import fresh_database, pg18_bin_dir, running_server

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))  # noqa: S311
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with running_server(pg18_bin_dir()) as server, fresh_database(server) as url:
        with psycopg.connect(url) as conn:
            Outbox().migrate(conn)
        campaign = Campaign(url, options.seed)
        verdict = campaign.run(options.seconds)
    print(
        f"{verdict.messages} messages, {verdict.accepted} accepted ({verdict.repeats} repeats), "
        f"{campaign.crashes} crashes, {campaign.freezes} freezes, {campaign.retries} operator retries, "
        f"{verdict.skipped} skipped"
    )
    print(
        "\n".join(verdict.problems)
        or "no violation of order, nothing left behind, no double finalize, no deadlock"
    )
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
