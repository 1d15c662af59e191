"""``attempts``, and what ``dead show`` tells of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from fencepost import Outbox
from tests.cli.program import Result, bury, enqueue

Call = Callable[..., Result]
HEADERS = ["token", "attempt", "worker", "started", "seconds", "result", "made_because", "error"]


@pytest.fixture
def told(store: str) -> int:
    """A message that was taken over while its worker lived, delivered by both."""
    with psycopg.connect(store) as connection:
        Outbox().set_queue(connection, "default", "ann", ledger=True)
    (row_id,) = enqueue(store)
    with psycopg.connect(store, autocommit=True) as connection:
        old = Outbox().claim(connection, "old")
        connection.execute("UPDATE outbox SET lease_until = now() - interval '1 s'")
        new = Outbox().claim(connection, "new\x1b[31m")
        assert Outbox().mark_done(connection, new) == []
        assert Outbox().mark_done(connection, old) == old
    return row_id


def test_for_people(call: Call, store: str, told: int) -> None:
    lines = call("attempts", str(told), store=store).out.splitlines()
    assert lines[0].split() == HEADERS
    first, second = (line.split() for line in lines[1:3])
    assert (first[:3], first[5:]) == (["1", "1", "old"], ["delivered,", "lease", "lost", "-", "-"])
    assert (second[:3], second[5:]) == (["2", "2", "new\\x1b[31m"], ["delivered", "lease_lost", "-"])
    assert lines[3:] == [
        "token 2 may be a duplicate: of the attempt before it, the lease was lost while its worker lived, and "
        "somebody else took over"
    ]
    assert lines == call("dead", "show", str(told), store=store).out.split("\n\n")[1].splitlines()


def test_for_programs(call: Call, store: str, told: int) -> None:
    found = call("attempts", str(told), "--json", store=store).json
    assert [
        (each["token"], each["result"], each["lease_lost"], each["cause"], each["is_repeat"]) for each in found
    ] == [
        ("1", "delivered", True, None, False),
        ("2", "delivered", False, "lease_lost", True),
    ]
    shown = call("dead", "show", str(told), "--json", store=store).json
    assert shown["attempts_made"] == found
    by_message_id = call("attempts", shown["message_id"], "--json", store=store)
    assert by_message_id.json == found


def test_without_a_ledger_it_says_so(call: Call, store: str) -> None:
    (row_id,) = bury(store)
    result = call("attempts", str(row_id), store=store)
    assert (result.code, result.out) == (1, "")
    assert "does its queue keep one?" in result.err
    nothing = call("attempts", str(row_id), "--json", store=store)
    assert (nothing.code, nothing.json) == (1, [])
    assert call("dead", "show", str(row_id), "--json", store=store).json["attempts_made"] == []
    assert "token    attempt" not in call("dead", "show", str(row_id), store=store).out


def test_what_is_under_way(call: Call, store: str, told: int) -> None:
    (row_id,) = enqueue(store)
    with psycopg.connect(store) as connection:
        Outbox().claim(connection, "w", lease=timedelta(seconds=60))
    assert "under way" in call("attempts", str(row_id), store=store).out
    assert call("attempts", str(row_id), "--json", store=store).json[0]["result"] is None


@pytest.mark.parametrize("identity", ["x", "0", "99999999999999999999"])
def test_what_is_no_id_is_refused(call: Call, store: str, identity: str) -> None:
    result = call("attempts", identity, store=store)
    assert result.code == 2
    assert "neither a message's id" in result.err
