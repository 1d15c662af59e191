"""``status``: once, and again and again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import psycopg
import pytest

from fencepost.embedded import PostgresServer
from tests.cli.program import (
    Program,
    Result,
    bury,
    deliver,
    enqueue,
    finish,
    open_breaker,
    out_of_reach,
    read_until,
)

Call = Callable[..., Result]


def test_an_empty_outbox(call: Call, store: str) -> None:
    assert call("status", store=store) == Result(0, "no open messages\ndone: 0 kept\n", "")


def test_counts_by_queue(call: Call, store: str) -> None:
    deliver(store, 2)
    bury(store, 1, queue="mail")
    bury(store, 2, queue="mail", outcome="exhausted")
    enqueue(store, 3)
    lines = call("status", store=store).out.splitlines()
    assert lines[0].split() == ["queue", "pending", "processing", "blocked", "dead", "expired", "oldest"]
    assert lines[1].split()[:6] == ["default", "3", "0", "0", "0", "0"]
    assert lines[2].split() == ["mail", "0", "0", "0", "3", "0", "-"]
    assert lines[3].split()[:6] == ["total", "3", "0", "0", "3", "0"]
    assert lines[4:] == ["dead: exhausted 2, permanent 1 (see `fencepost dead list`)", "done: 2 kept"]


def test_leases_by_worker(call: Call, store: str) -> None:
    from fencepost import Outbox

    enqueue(store, 2)
    with psycopg.connect(store) as connection:
        Outbox().claim(connection, "host:1")
    assert "leases: host:1 2" in call("status", store=store).out


def test_json(call: Call, store: str) -> None:
    bury(store)
    enqueue(store, 2)
    found = call("status", "--json", store=store).json
    [queue] = found["queues"]
    assert (queue["queue"], queue["pending"], queue["dead"]) == ("default", 2, 1)
    assert queue["oldest_age_seconds"] >= 0
    assert found["total"]["pending"] == 2
    assert found["dead_by_outcome"] == {"permanent": 1}
    assert (found["done"], found["done_is_capped"], found["workers"]) == (0, False, {})


def test_watch_goes_on_until_interrupted_and_leaves_no_transaction_open(configured: Program, store: str) -> None:
    process = configured.start("status", "--watch", "0.1", "--json")
    assert process.stdout is not None
    for pending in (0, 3):
        enqueue(store, pending)
        for line in process.stdout:
            if json.loads(line)["total"]["pending"] == pending:
                break
        with psycopg.connect(store) as connection:
            open_since = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost status'"
                " AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '50 ms'"
            ).fetchone()
        assert open_since == (0,)
    result = finish(process, signal.SIGINT)
    assert (result.code, result.err) == (130, "")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_watch_shows_a_breaker_that_opens(configured: Program, store: str, arguments: tuple[str, ...]) -> None:
    process = configured.start("status", "--watch", "0.1", *arguments)
    read_until(process.stdout, "done")
    open_breaker(store, "hook", "connection refused")
    assert "hook" in read_until(process.stdout, "connection refused")
    assert finish(process, signal.SIGINT).code == 130


def test_watch_waits_for_a_database_that_goes_away(
    configured: Program, store: str, postgres18: PostgresServer
) -> None:
    process = configured.start("status", "--watch", "0.1")
    read_until(process.stdout, "no open messages")
    with out_of_reach(store, postgres18):
        assert "; trying again" in read_until(process.stderr, "trying again")
    enqueue(store)
    read_until(process.stdout, "default")
    assert finish(process, signal.SIGINT).code == 130


@pytest.mark.parametrize("arguments", [("status",), ("status", "--watch"), ("status", "--watch", "1m", "--json")])
def test_a_database_that_was_never_there_ends_it(call: Call, arguments: tuple[str, ...]) -> None:
    result = call(*arguments, store="postgresql://app:s3cret@127.0.0.1:1/shop")
    assert (result.code, result.out) == (3, "")
    assert "Connection refused; check the host and port in postgresql://app:***@127.0.0.1:1/shop" in result.err
