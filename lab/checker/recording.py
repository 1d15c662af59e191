"""What a run needs so that it can be judged: the lab's tables and triggers, and a writer of history lines.

It imports nothing but psycopg, so that producers, publishers, receivers and conductors may all use it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

SAMPLE = """
    SELECT a.pid, a.application_name AS application, a.state, a.backend_xid::text::bigint AS xid,
           extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::float8 AS open_for,
           extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change)::float8 AS in_state_for
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
      AND a.xact_start IS NOT NULL AND a.backend_type = 'client backend'
"""
"""The open transactions of this database; rows as objects are a `sample` line's `open`."""

CLOCK = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::bigint"
"""For a `clock` line's `database`."""


def install(
    connection: psycopg.Connection[Any],
    outbox: str = "outbox",
    job: str = "outbox_job",
    queue: str = "outbox_queue",
) -> None:
    """Make the lab's tables and triggers beside migrated tables; what is there already stays.

    Args:
        outbox: the table's name, with its schema before a dot where it is not on the search path; so the others.
    """
    text = (Path(__file__).parent / "recording.sql").read_text(encoding="utf-8")
    names = {"outbox": outbox, "job": job, "queue": queue}
    quoted = {each: sql.Identifier(*name.split(".")).as_string(connection) for each, name in names.items()}
    with connection.transaction():
        # The names come quoted, and the file is our own.
        connection.execute(text.format_map(quoted).encode())


def digest(data: bytes) -> str:
    """Return what stands for a payload in history lines."""
    return hashlib.sha256(data).hexdigest()


def headers_digest(headers: Mapping[str, str]) -> str:
    """Return what stands for headers in history lines: their order does not matter, anything else does."""
    return digest(json.dumps(dict(headers), sort_keys=True, separators=(",", ":")).encode())


class Recorder:
    """Appends the history lines of one process to its own file; `write` returns once the kernel has the line.

    A forked child needs a recorder of its own.

    Args:
        folder: of the whole run.
        process: a name that no other process of the run has.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._process = process
        self._file = (folder / f"{process}.jsonl").open("ab", buffering=0)

    def write(self, kind: str, /, **fields: object) -> None:
        """Append one line, of now unless ``at`` says otherwise. Threads may share a recorder."""
        line = {"at": time.monotonic_ns(), "process": self._process, "kind": kind} | fields
        # One write a line: a kill cuts at most the last one, and lines of threads do not mix.
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()
