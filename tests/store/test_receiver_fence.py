"""A receiver's fence where several come to one resource: whatever the order, an older holder never writes last."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost import Admission, Fence, Inbox, SchemaError, job_resource, message_resource
from fencepost.store import jobs
from tests.store.job_rows import CATALOG, add_jobs, claim_one_job, claim_suspects, do, expire_jobs
from tests.store.rows import Connection, add, claim_one, expire, value, wait_for

FENCE = Fence("ledger")
FENCE_ALONE = Fence("ledger", allow_autocommit=True)
LEVELS = ["read committed", "repeatable read", "serializable"]
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def balance(db: Connection) -> Iterator[None]:
    db.execute("DROP TABLE IF EXISTS balance; CREATE TABLE balance (amount int, token bigint)")
    db.execute("INSERT INTO balance VALUES (0, 0)")
    yield
    db.execute("DROP TABLE balance")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(60) as made:
        yield made


def until_waiting(db: Connection, count: int, *others: Future[Any]) -> None:
    while value(db, WAITS) < count:
        for other in others:
            assert not other.done(), other.result()


def begin(url: str, level: str = "read committed") -> psycopg.Connection[Any]:
    """Open a transaction that has its snapshot."""
    connection = psycopg.connect(url)
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    connection.execute("SELECT 1")
    return connection


def write(url: str, token: int, level: str = "read committed") -> Admission:
    """Write as a holder of this token does, which ends where a newer one was; again where the database asks."""
    while True:
        with begin(url, level) as connection:
            try:
                answer = FENCE.admit(connection, "r", token)
                if answer:
                    connection.execute("UPDATE balance SET amount = amount + 1, token = %s", [token])
                connection.commit()
            except psycopg.errors.SerializationFailure:
                continue
            return answer


@pytest.mark.parametrize("level", LEVELS)
def test_of_forty_holders_at_once_none_writes_over_a_newer_one(
    url: str, db: Connection, balance: None, pool: ThreadPoolExecutor, level: str
) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS written (n bigserial, token bigint); TRUNCATE written")
    db.execute(
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO written (token) VALUES (NEW.token); RETURN NULL; END $$"
    )
    db.execute("CREATE TRIGGER note AFTER UPDATE ON balance FOR EACH ROW EXECUTE FUNCTION note()")
    tokens = [token for token in range(1, 21) for _ in range(2)]
    answers = [each.result() for each in [pool.submit(write, url, token, level) for token in tokens]]
    order = value(db, "SELECT array_agg(token ORDER BY n) FROM written")
    assert order == sorted(order)
    assert order[-1] == 20
    assert len(order) == sum(map(bool, answers)) == value(db, "SELECT amount FROM balance")
    assert {answer.token for answer in answers if not answer} | set(order) == set(range(1, 21))
    assert all(answer.newest > answer.token for answer in answers if not answer)


@pytest.mark.parametrize(
    ("first", "second", "ending", "admitted"),
    [
        (1, 2, "commit", True),
        (1, 2, "rollback", True),
        (2, 1, "commit", False),
        (2, 1, "rollback", True),
        (2, 2, "commit", True),
    ],
)
def test_who_comes_second_waits_and_judges_by_what_then_stands(
    url: str,
    db: Connection,
    balance: None,
    pool: ThreadPoolExecutor,
    first: int,
    second: int,
    ending: str,
    admitted: bool,
) -> None:
    with psycopg.connect(url) as one:
        assert FENCE.admit(one, "r", first)
        other = pool.submit(write, url, second)
        until_waiting(db, 1, other)
        assert value(db, "SELECT token FROM balance") == 0
        getattr(one, ending)()
    assert bool(other.result()) is admitted


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_under_an_older_snapshot_it_is_a_serialization_failure_never_a_write(
    url: str, db: Connection, level: str, first: int, second: int, is_known: bool
) -> None:
    if is_known:
        with db.transaction():
            assert FENCE.admit(db, "r", 0)
    with begin(url, level) as late:
        with db.transaction():
            assert FENCE.admit(db, "r", first)
        with pytest.raises(psycopg.errors.SerializationFailure):
            FENCE.admit(late, "r", second)
        late.rollback()
    assert value(db, "SELECT token FROM outbox_fence") == first


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_snapshot_sees_is_judged_without_a_failure(url: str, db: Connection, level: str) -> None:
    with db.transaction():
        assert FENCE.admit(db, "r", 5)
    for token, expected in ((4, False), (5, True), (6, True)):
        with begin(url, level) as connection:
            assert bool(FENCE.admit(connection, "r", token)) is expected


def test_at_read_committed_a_holder_sees_what_the_one_before_it_wrote(
    url: str, db: Connection, balance: None, pool: ThreadPoolExecutor
) -> None:
    def second() -> int:
        with psycopg.connect(url) as connection:
            assert FENCE.admit(connection, "r", 2)
            return int(value(connection, "SELECT amount FROM balance"))

    with psycopg.connect(url) as one:
        assert FENCE.admit(one, "r", 1)
        one.execute("UPDATE balance SET amount = 7")
        other = pool.submit(second)
        until_waiting(db, 1, other)
        one.commit()
    assert other.result() == 7


def test_what_is_forgotten_meanwhile_is_seen_anew(url: str, db: Connection, pool: ThreadPoolExecutor) -> None:
    with db.transaction():
        assert FENCE.admit(db, "r", 9)
    db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '30 days'")
    with psycopg.connect(url) as purger:
        assert FENCE.purge(purger, timedelta(days=10)) == 1
        with psycopg.connect(url) as connection:
            other = pool.submit(lambda: FENCE.admit(connection, "r", 3))
            until_waiting(db, 1, other)
            purger.commit()
            assert other.result()


def test_a_refusal_names_the_newest_token_of_its_own_resource(db: Connection) -> None:
    for resource, token in (("a", 9), ("b", 5)):
        assert FENCE_ALONE.admit(db, resource, token)
        assert Fence("stock", allow_autocommit=True).admit(db, resource, 7)
    refused = [FENCE_ALONE.admit(db, resource, 4) for resource in ("a", "b")]
    assert [(bool(each), each.newest) for each in refused] == [(False, 9), (False, 5)]


def test_a_purge_keeps_the_tokens_that_are_younger_than_asked(db: Connection) -> None:
    for resource in ("old", "young"):
        assert FENCE_ALONE.admit(db, resource, 1)
    db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '11 days' WHERE resource = 'old'")
    db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '9 days' WHERE resource = 'young'")
    assert FENCE.purge(db, timedelta(days=10)) == 1
    assert value(db, "SELECT array_agg(resource) FROM outbox_fence") == ["young"]


def test_a_purge_passes_by_what_a_holder_is_at(url: str, db: Connection) -> None:
    with db.transaction():
        assert all(FENCE.admit(db, f"r{number}", 1) for number in range(3))
    db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '30 days'")
    with psycopg.connect(url) as holder:
        assert FENCE.admit(holder, "r1", 2)
        with db.transaction():
            db.execute("SET LOCAL lock_timeout = '1s'")
            assert FENCE.purge(db, timedelta(days=10)) == 2
    assert value(db, "SELECT array_agg(resource) FROM outbox_fence") == ["r1"]


@pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
def test_a_write_that_is_swallowed_is_reported(db: Connection, when: str) -> None:
    with db.transaction(force_rollback=True):
        if when == "UPDATE":
            assert FENCE.admit(db, "r", 1)
        db.execute("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        db.execute(
            f"CREATE TRIGGER s BEFORE {when} ON outbox_fence FOR EACH ROW EXECUTE FUNCTION swallow()".encode()
        )
        with pytest.raises(SchemaError, match=r'"outbox_fence" answers with no row.*swallows it'):
            FENCE.admit(db, "r", 2)


@pytest.mark.parametrize(
    ("column", "bad"), [("receiver", "''"), ("resource", "''"), ("resource", "repeat('x', 2049)"), ("token", "-1")]
)
def test_impossible_rows_are_refused_by_the_table(db: Connection, column: str, bad: str) -> None:
    values = {"receiver": "'c'", "resource": "'r'", "token": "1"} | {column: bad}
    columns = ", ".join(values)
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_fence_limits"):
        db.execute(f"INSERT INTO outbox_fence ({columns}) VALUES ({', '.join(values.values())})".encode())


def test_tokens_of_two_resources_cross_and_the_deadlock_is_told(
    url: str, db: Connection, pool: ThreadPoolExecutor
) -> None:
    """A transaction that comes to several resources takes them in one order, or the database says so."""

    def holder(mine: str, other: str, mate: psycopg.Connection[Any]) -> str:
        try:
            FENCE.admit(mate, other, 1)
        except psycopg.errors.DeadlockDetected as error:
            mate.rollback()
            return str(error.sqlstate)
        mate.commit()
        return "admitted"

    with psycopg.connect(url) as one, psycopg.connect(url) as two:
        assert FENCE.admit(one, "a", 1)
        assert FENCE.admit(two, "b", 1)
        found = [pool.submit(holder, "a", "b", one), pool.submit(holder, "b", "a", two)]
        assert sorted(each.result() for each in found) == ["40P01", "admitted"]
        assert FENCE.admit(one, "b", 1)
        assert FENCE.admit(one, "a", 1)


def test_who_took_a_message_over_is_let_in_and_who_lost_it_is_not(db: Connection) -> None:
    add(db)
    first = claim_one(db)
    expire(db)
    second = claim_one(db, owner="w2")
    resource = message_resource(first.message.message_id)
    assert FENCE_ALONE.admit(db, resource, second.token)
    assert FENCE_ALONE.admit(db, resource, first.token).newest == second.token
    assert not FENCE_ALONE.admit(db, resource, first.token)


def test_who_took_a_job_over_is_let_in_and_who_lost_it_is_not(db: Connection) -> None:
    add_jobs(db)
    first = claim_one_job(db)
    expire_jobs(db)
    do(db, jobs.reclaim(CATALOG, limit=10))
    (second,) = claim_suspects(db)
    resource = job_resource(first.job.job_id)
    assert second.job.job_id == first.job.job_id
    assert FENCE_ALONE.admit(db, resource, first.fence)
    assert FENCE_ALONE.admit(db, resource, second.fence)
    assert not FENCE_ALONE.admit(db, resource, first.fence)


def test_the_longest_names_fit_into_the_index(db: Connection) -> None:
    """Text that cannot be compressed, of as many bytes as are taken."""
    noise = "".join(f"{number:04x}" for number in random.Random(3).sample(range(65_536), 600))  # noqa: S311 - noise
    assert Fence(noise[:100], allow_autocommit=True).admit(db, noise[100:2148], 1)
    inbox = Inbox(noise[:100], allow_autocommit=True)
    assert inbox.accept(db, noise[100:612])
    assert inbox.accept_in_sequence(db, noise[100:2148], 1)


FROZEN = """
import sys, psycopg
from fencepost import Fence
with psycopg.connect(sys.argv[1], application_name="frozen") as connection:
    assert Fence("ledger").admit(connection, "r", 1)
    connection.execute("UPDATE balance SET amount = amount + 1, token = 1")
    connection.execute("SET idle_in_transaction_session_timeout = '300ms'")
    print("written", flush=True)
    sys.stdin.readline()
    try:
        connection.commit()
    except psycopg.Error as error:
        print("refused", flush=True)
        sys.exit(7)
"""


def test_a_holder_frozen_in_its_transaction_is_thrown_out_by_its_own_time_out(
    url: str, db: Connection, balance: None, pool: ThreadPoolExecutor
) -> None:
    """It holds the row, so the newer one would wait for as long as it is frozen."""
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "written\n"
        frozen.send_signal(signal.SIGSTOP)
        try:
            assert write(url, 2)
            wait_for(db, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'frozen')")
        finally:
            frozen.send_signal(signal.SIGCONT)
        said, _ = frozen.communicate("go on\n", timeout=30)
    assert (said, frozen.returncode) == ("refused\n", 7)
    assert db.execute("SELECT amount, token FROM balance").fetchone() == (1, 2)


def plain_sql() -> tuple[str, str]:
    """The table and the statement that the documentation gives to receivers without this library."""
    page = (ROOT / "docs" / "fence.md").read_text(encoding="utf-8")
    found = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    return found[0], found[1]


TURNS = ((1, True), (1, True), (3, True), (2, False), (3, True), (1, False))


def test_the_plain_statement_for_other_receivers_does_the_same(db: Connection) -> None:
    table, statement = plain_sql()
    db.execute("DROP TABLE IF EXISTS seen_token")
    db.execute(table.encode())
    sent = statement.replace(":resource", "%(resource)s").replace(":token", "%(token)s").encode()
    for token, is_admitted in TURNS:
        rows = db.execute(sent, {"resource": "message:1", "token": token}).fetchall()
        assert rows == ([(token,)] if is_admitted else [])


def test_sqlite_takes_the_plain_statement_as_well() -> None:
    table, statement = plain_sql()
    connection = sqlite3.connect(":memory:")
    connection.execute(table)
    for token, is_admitted in TURNS:
        rows = connection.execute(statement, {"resource": "message:1", "token": token}).fetchall()
        assert rows == ([(token,)] if is_admitted else [])
    connection.close()
