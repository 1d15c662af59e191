"""``doctor``: what slows the outbox or breaks its order."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import psycopg

from fencepost import Outbox
from tests.cli.program import Result, enqueue

Call = Callable[..., Result]


def test_where_all_is_well(call: Call, store: str) -> None:
    enqueue(store)
    result = call("doctor", store=store)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:2] == [
        "ok       schema           the tables are in order",
        "ok       delivered_order  no key was out of order, by 0 delivered ones among the newest 50000 messages",
    ]
    assert {line.split()[0] for line in lines} == {"ok"}
    assert len(lines) == 13


def test_a_problem_comes_with_its_remedy_and_exits_1(call: Call, store: str) -> None:
    outbox = Outbox()
    with psycopg.connect(store) as connection:
        for n in range(2):
            outbox.enqueue(connection, "e", n, ordering_key="k", queue="mail")
        outbox.mark_dead(connection, outbox.claim(connection, "w", batch=1), "no")
    result = call("doctor", store=store)
    assert result.code == 1
    lines = result.out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("problem"))
    assert lines[at : at + 2] == [
        "problem  dead_heads       1 of 1 key with open messages cannot move: others wait behind a dead message",
        "                          do: fencepost keys; then dead retry or dead skip",
    ]
    found = call("doctor", "--json", store=store)
    assert found.code == 1
    assert {
        "check": "dead_heads",
        "severity": "problem",
        "text": "1 of 1 key with open messages cannot move: others wait behind a dead message",
        "remedy": "fencepost keys; then dead retry or dead skip",
    } in found.json["findings"]


def test_a_warning_exits_0(call: Call, store: str) -> None:
    with psycopg.connect(store) as connection:
        Outbox().set_queue(connection, "mail", "ann", lease=timedelta(seconds=5))
    result = call("doctor", store=store)
    assert result.code == 0
    assert re.search(r"^warning +queue_settings +queue mail: lease: ", result.out, re.MULTILINE)


def test_keys_that_would_drive_a_terminal(call: Call, store: str) -> None:
    """Two producers in plain SQL, the first of which commits last."""
    insert = "INSERT INTO outbox (event_type, payload, ordering_key) VALUES ('e', '1', %s)"
    with psycopg.connect(store) as first, psycopg.connect(store) as slow, psycopg.connect(store) as fast:
        for connection in (first, slow, fast):
            connection.execute(insert, ["\x1b[31m\n"])
        for connection in (first, fast, slow):
            connection.commit()
    result = call("doctor", store=store)
    assert result.code == 1
    assert "\x1b" not in result.out
    assert """hashtextextended('"public"."outbox" ' || queue || ' ' || ordering_key, 1)""" in result.out


def test_without_tables(call: Call, database18: str) -> None:
    result = call("doctor", store=database18)
    assert result.code == 1
    assert result.out.startswith(
        'problem  schema  the tables of "public"."outbox" do not exist: run `fencepost migrate`'
    )
