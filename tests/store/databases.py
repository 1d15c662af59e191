"""Databases that hold the outbox's tables already: made once a module, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from fencepost import Outbox
from fencepost.embedded import PostgresServer
from tests.postgres import fresh_database


@dataclass(frozen=True)
class Migrated:
    """A database with the tables in place."""

    url: str
    janitor: psycopg.Connection[Any]

    def empty(self) -> None:
        """Remove every message, setting and number; fails rather than waits where a test left a lock behind."""
        self.janitor.execute(
            "DELETE FROM outbox; DELETE FROM outbox_audit; DELETE FROM outbox_queue; DELETE FROM outbox_key;"
            "DELETE FROM outbox_inbox; DELETE FROM outbox_inbox_key;"
            "DELETE FROM outbox_job; DELETE FROM outbox_job_audit; DELETE FROM outbox_cron;"
            "DELETE FROM outbox_attempt; DELETE FROM outbox_fence"
        )


@contextmanager
def migrated_database(server: PostgresServer) -> Iterator[Migrated]:
    """A new database on the server with the tables in place."""
    with fresh_database(server) as url, psycopg.connect(url) as janitor:
        Outbox().migrate(janitor)
        janitor.commit()
        janitor.autocommit = True
        janitor.execute("SET lock_timeout = '10s'")
        yield Migrated(url, janitor)
