"""A store in memory that answers the operations' statements by name, on a clock that is handed in.

It does what the SQL files mean, row by row and lock by lock, and nothing of how a database does it;
`lab.conformance` holds it to PostgreSQL. Everything in it is deterministic: the same calls in the same order give
the same rows.
"""

from lab.fake_store.database import FakeDatabase
from lab.fake_store.session import FakeSession

__all__ = ["FakeDatabase", "FakeSession"]
