"""A migrated database for a dispatcher, and a short way to look into it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from fencepost import Outbox
from tests.runtime.box import Box
from tests.runtime.job_box import JobBox


@pytest.fixture
def box(database18: str) -> Iterator[Box]:
    """An empty outbox on PostgreSQL 18."""
    with psycopg.connect(database18) as conn:
        Outbox().migrate(conn)
    with Box(database18) as made:
        yield made


@pytest.fixture
def jobs(database18: str) -> Iterator[JobBox]:
    """An empty table of jobs on PostgreSQL 18."""
    with psycopg.connect(database18) as conn:
        Outbox().migrate(conn)
    with JobBox(database18) as made:
        yield made
