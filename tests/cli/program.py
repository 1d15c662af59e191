"""The program under test: in this process where that is enough, and as a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from fencepost import NewMessage, Outbox
from fencepost.core.operation import run
from fencepost.core.states import Outcome
from fencepost.drivers import driver_for
from fencepost.embedded import PostgresServer
from fencepost.store import breaker

PATIENCE = 30
"""Seconds after which a process that does not do what it should is given up on."""


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def clean_environment() -> dict[str, str]:
    """This process's environment without what would configure fencepost or libpq, or unbuffer its output.

    Unbuffered, a line and its end are two writes, and what threads print runs into each other.
    """
    configuring = ("FENCEPOST_", "PG", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if not name.startswith(configuring)}


@dataclass
class Program:
    """Starts ``python -m fencepost`` in a folder of its own."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it, its outputs in pipes unless said otherwise."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", *arguments],
            cwd=self.folder,
            env=clean_environment() | dict(self.environ),
            text=True,
            **options,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **options: Any) -> Result:
        """Run it to its end."""
        return finish(self.start(*arguments, **options))

    def end(self) -> None:
        """Kill what a failed test left behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str], send: signal.Signals | None = None) -> Result:
    """Wait for the end of a process, after a signal if one is given."""
    if send is not None:
        process.send_signal(send)
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out or "", err or "")


def read_until(stream: IO[str] | None, text: str) -> str:
    """Read lines until one holds a text; return that line."""
    assert stream is not None
    read = []
    for line in stream:
        read.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} never came, but: {''.join(read)}")


# --- what is in the database ---------------------------------------------------------------------------------


def enqueue(url: str, count: int = 1, event_type: str = "order.created", queue: str = "default") -> list[int]:
    """Commit some messages; return their ids."""
    with psycopg.connect(url) as connection:
        messages = [NewMessage(event_type=event_type, payload={"n": n}, queue=queue) for n in range(count)]
        return [each.id for each in Outbox().enqueue_many(connection, messages)]


def bury(
    url: str, count: int = 1, error: str = "no such thing", queue: str = "default", outcome: str = "permanent"
) -> list[int]:
    """Commit some messages that are dead; return their ids."""
    ids = enqueue(url, count, queue=queue)
    outbox = Outbox()
    with psycopg.connect(url) as connection:
        claimed = outbox.claim(connection, "test", queues=[queue])
        assert [each.id for each in claimed] == ids
        assert outbox.mark_dead(connection, claimed, error, outcome=Outcome(outcome)) == []
    return ids


def open_breaker(url: str, queue: str, error: str, pause: float = 60) -> None:
    """Open the breaker of a queue as a worker does."""
    with psycopg.connect(url) as connection:
        operation = breaker.open_breaker(Outbox().catalog, queue, pause=timedelta(seconds=pause), error=error)
        assert run(operation, driver_for(connection).execute)


def deliver(url: str, count: int = 1) -> list[int]:
    """Commit some messages that are delivered; return their ids."""
    ids = enqueue(url, count)
    outbox = Outbox()
    with psycopg.connect(url) as connection:
        claimed = outbox.claim(connection, "test", batch=count)
        assert outbox.mark_done(connection, claimed) == []
    return ids


def statuses(url: str) -> dict[int, str]:
    """Return every message's status by id."""
    with psycopg.connect(url) as connection:
        return dict(connection.execute("SELECT id, status FROM outbox ORDER BY id").fetchall())


@contextmanager
def out_of_reach(url: str, server: PostgresServer) -> Iterator[None]:
    """Let nobody into a database, and throw out who is in it."""
    name = sql.Identifier(urlsplit(url).path[1:])
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [urlsplit(url).path[1:]],
        )
        try:
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
