"""What a database error means for the connection that met it (psycopg)."""

from __future__ import annotations

from enum import Enum

import psycopg


class Fault(Enum):
    """How to go on after a database error."""

    TRANSIENT = "the transaction failed by bad luck: run it again on the same connection"
    CONNECTION = "this connection or its server cannot serve us: drop it and connect again"
    REFUSED = "the server will not let us, for now: a privilege or a table is missing"
    OTHER = "the statement itself is wrong, or something we do not know"


# Codes: PostgreSQL documentation, appendix A.
_TRANSIENT = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled: a statement time-out
    }
)
_CONNECTION = frozenset(
    {
        "25006",  # read_only_sql_transaction: a standby, or a primary that was demoted under us
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "3D000",  # invalid_catalog_name: the database is being restored or renamed
        "55000",  # object_not_in_prerequisite_state: the server is in recovery
    }
)
_REFUSED = frozenset(
    {
        "42501",  # insufficient_privilege
        "42P01",  # undefined_table: it is being restored, or was dropped
        "3F000",  # invalid_schema_name
    }
)
_CONNECTION_CLASSES = ("08", "53", "57P", "58")


def fault_of(error: BaseException) -> Fault:
    """Classify an error that came out of psycopg, or of our own time limit around it."""
    if isinstance(error, TimeoutError | OSError):
        return Fault.CONNECTION
    if not isinstance(error, psycopg.Error):
        return Fault.OTHER
    code = error.sqlstate
    if code in _TRANSIENT:
        return Fault.TRANSIENT
    if code in _CONNECTION or (code is not None and code.startswith(_CONNECTION_CLASSES)):
        return Fault.CONNECTION
    if code in _REFUSED:
        return Fault.REFUSED
    if code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Fault.CONNECTION
    return Fault.OTHER
