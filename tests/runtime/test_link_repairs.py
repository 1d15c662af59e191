"""What a worker's connection does about faults, each raised by the real server; and its limits, as numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors

from fencepost.core.operation import Operation, Statement
from fencepost.drivers.faults import Fault, fault_of
from fencepost.runtime.link import Limits, Link
from fencepost.store.catalog import Catalog

LIMITS = Limits.below(timedelta(seconds=60))
SOON = 20.0
PID = Statement("pid", "SELECT pg_catalog.pg_backend_pid()")
SERIALIZABLE = Statement(
    "default", "SELECT pg_catalog.set_config('default_transaction_isolation', 'serializable', false)"
)
ISOLATION = Statement("isolation", "SELECT pg_catalog.current_setting('transaction_isolation')")


@pytest.mark.parametrize("seconds", [0.1, 1, 10, 60, 90, 3600])
def test_no_limit_outlives_a_lease(seconds: float) -> None:
    limits = Limits.below(timedelta(seconds=seconds))
    assert 0 < limits.lock < limits.statement
    for limit in (limits.lock, limits.statement, limits.idle, limits.transaction, limits.answer):
        assert limit <= seconds * 0.6
    assert (limits.idle, limits.transaction) <= (30, 40)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        *((code, Fault.TRANSIENT) for code in ("40001", "40P01", "55P03", "57014")),
        *((code, Fault.CONNECTION) for code in ("25006", "25P03", "25P04", "3D000", "55000")),
        *((code, Fault.CONNECTION) for code in ("08006", "53300", "57P01", "58030")),
        *((code, Fault.REFUSED) for code in ("42501", "42P01", "3F000")),
        *((code, Fault.OTHER) for code in ("23505", "22P05", "42601")),
    ],
)
def test_a_code_says_how_to_go_on(code: str, fault: Fault) -> None:
    assert fault_of(errors.lookup(code)()) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (TimeoutError(), Fault.CONNECTION),
        (ConnectionResetError(), Fault.CONNECTION),
        (psycopg.OperationalError("the connection is lost"), Fault.CONNECTION),
        (psycopg.InterfaceError("the connection is closed"), Fault.CONNECTION),
        (psycopg.DataError("an argument of ours"), Fault.OTHER),
        (LookupError(), Fault.OTHER),
    ],
    ids=repr,
)
def test_an_error_without_a_code_says_it_by_its_kind(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


async def test_a_server_that_is_silent_is_not_waited_for() -> None:
    link = Link("postgresql:///nobody_connects", Catalog(), LIMITS, "test", lambda: None)
    async with asyncio.timeout(SOON):
        with pytest.raises(TimeoutError, match=r"no answer from the database within 0\.05 s"):
            await link._answered(asyncio.sleep(3 * SOON), 0.05)


class Repairs:
    """A link, and how often it connected anew."""

    def __init__(self, url: str) -> None:
        self.reconnects = 0
        self.link = Link(url, Catalog(), LIMITS, "test", self._note)

    def _note(self) -> None:
        self.reconnects += 1


@pytest.fixture
async def repairs(database18: str) -> AsyncIterator[Repairs]:
    made = Repairs(database18)
    yield made
    await made.link.close()


def raised_once(code: str) -> Statement:
    return Statement("fault", f"DO $$ BEGIN RAISE 'a fault' USING ERRCODE = '{code}'; END $$")


@pytest.mark.parametrize(
    ("code", "reconnects"), [("40001", 0), ("40P01", 0), ("57014", 0), ("25006", 1), ("57P01", 1), ("42501", 1)]
)
async def test_after_a_fault_the_operation_is_made_anew_where_needed_on_another_connection(
    repairs: Repairs, code: str, reconnects: int
) -> None:
    """A server that became read-only, or that is about to stop, must not be asked again over this connection."""
    made: list[int] = []

    def operation() -> Operation[int]:
        made.append(1)
        rows = yield PID
        if len(made) == 1:
            yield raised_once(code)
        pid: int = rows[0][0]
        return pid

    first = await repairs.link.run(lambda: one(PID))
    async with asyncio.timeout(SOON):
        pid = await repairs.link.run(operation)
    assert len(made) == 2
    assert (repairs.reconnects, pid == first) == (reconnects, not reconnects)


def one(statement: Statement) -> Operation[object]:
    rows = yield statement
    return rows[0][0]


async def test_a_connection_that_was_cut_is_made_anew(repairs: Repairs, database18: str) -> None:
    pid = await repairs.link.run(lambda: one(PID))
    with psycopg.connect(database18, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    async with asyncio.timeout(SOON):
        assert await repairs.link.run(lambda: one(PID)) != pid
    assert repairs.reconnects == 1


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_all_or_nothing_runs_in_read_committed_whatever_the_default(
    repairs: Repairs, database18: str, is_shared: bool
) -> None:
    """Behind a pooler that shares sessions, the session's own default is nobody's to set."""
    with psycopg.connect(database18, autocommit=True) as other:
        other.execute(f"ALTER DATABASE {other.info.dbname} SET default_transaction_isolation = 'serializable'")
    if is_shared:
        await repairs.link.open()
        repairs.link._is_shared = True
        await repairs.link.run(lambda: one(SERIALIZABLE))
    assert await repairs.link.run(lambda: one(ISOLATION), atomic=True) == "read committed"
