"""What PostgreSQL's own code says of an error, whichever library raised it."""

from __future__ import annotations

_AGAIN = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
    }
)


def is_for_a_repeat(error: BaseException) -> bool:
    """Tell whether the transaction failed by bad luck, so that running it anew may succeed."""
    return sqlstate_of(error) in _AGAIN


def sqlstate_of(error: BaseException) -> str | None:
    """Return the code of a database error (PostgreSQL documentation, appendix A), None where it has none.

    psycopg and asyncpg call it ``sqlstate``, psycopg2 ``pgcode``; SQLAlchemy keeps their error in ``orig``.
    """
    for each in (error, getattr(error, "orig", None)):
        for name in ("sqlstate", "pgcode"):
            code = getattr(each, name, None)
            if isinstance(code, str):
                return code
    return None
