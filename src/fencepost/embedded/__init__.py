"""A PostgreSQL server of our own, for trying fencepost without installing one: ``embedded:`` addresses."""

from __future__ import annotations

from fencepost.embedded.address import is_embedded, open_store
from fencepost.embedded.launcher import PostgresServer

__all__ = ["PostgresServer", "is_embedded", "open_store"]
