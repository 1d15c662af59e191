"""``partition``: divide, look, make ahead, drop."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.cli.program import Result, deliver, enqueue

Call = Callable[..., Result]


def test_a_life_in_partitions(call: Call, store: str) -> None:
    result = call("partition", "list", store=store)
    assert result.code != 0
    assert "one table, without partitions" in result.err
    result = call("partition", "init", "--rows", "1000", store=store)
    assert result.code == 0
    assert "in partitions of 1000 messages" in result.out
    assert call("migrate", "--check", store=store).code == 0
    assert call("partition", "add", store=store) == Result(0, "made none\n", "")
    deliver(store, 3)
    with psycopg.connect(store) as connection:
        connection.execute("SELECT setval('outbox_id_seq', 2999)")
    enqueue(store)
    result = call("partition", "list", store=store)
    assert result.code == 1
    assert "outbox_default" in result.out
    assert result.err.count("\n") == 2
    assert call("partition", "add", "--rows", "5000", store=store).out == "made outbox_p5000, outbox_p10000\n"
    # Two were never used; the first one holds what was done just now.
    dropped = call("partition", "drop", "--older-than", "7d", store=store)
    assert dropped.out == "dropped outbox_p1000, outbox_p2000\n"
    dropped = call("partition", "drop", "--older-than", "0s", "--json", store=store)
    assert dropped.json == {"dropped": ["outbox_p0"]}
    shown = call("partition", "list", "--json", store=store).json
    assert [each["partition"] for each in shown["partitions"]] == [
        "outbox_p5000",
        "outbox_p10000",
        "outbox_default",
    ]
    assert (shown["last_id"], shown["ahead"], len(shown["problems"])) == (3_000, 2, 1)


def test_an_outbox_with_messages_is_left_alone(call: Call, store: str) -> None:
    enqueue(store)
    result = call("partition", "init", "--rows", "1000", store=store)
    assert result.code != 0
    assert "only an empty outbox" in result.err
