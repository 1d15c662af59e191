"""``dead``: look at dead messages, and decide what becomes of them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fencepost import NewMessage, Outbox
from tests.cli.program import Result, bury, deliver, statuses

Call = Callable[..., Result]


def audit(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT outbox_id, action, actor, reason FROM outbox_audit ORDER BY 1"
        ).fetchall()


def test_list(call: Call, store: str) -> None:
    bury(store, 2, error="first\nsecond \x1b[31m")
    bury(store, queue="mail", outcome="exhausted", error="x" * 1_000)
    result = call("dead", "list", store=store)
    lines = result.out.splitlines()
    assert lines[0].split() == ["id", "queue", "event_type", "outcome", "attempts", "dead_at", "last_error"]
    assert lines[1].startswith("1   default  order.created  permanent  1")
    assert lines[1].endswith("first\\nsecond \\x1b[31m")
    assert lines[3].endswith("x" * 200 + " …")
    assert len(lines) == 4
    assert result.err == ""


def test_list_with_filters_and_pages(call: Call, store: str) -> None:
    bury(store, 3)
    bury(store, 2, queue="mail", outcome="exhausted")

    def ids(*arguments: str) -> list[int]:
        return [each["id"] for each in call("dead", "list", "--json", *arguments, store=store).json]

    assert ids() == [1, 2, 3, 4, 5]
    assert ids("--queue", "mail") == [4, 5]
    assert ids("--outcome", "permanent") == [1, 2, 3]
    assert ids("--queue", "mail", "--outcome", "permanent") == []
    assert ids("--limit", "2") == [1, 2]
    assert ids("--limit", "2", "--after", "2") == [3, 4]
    page = call("dead", "list", "--limit", "2", store=store)
    assert page.err == "there are more: --after 2\n"
    assert call("dead", "list", "--limit", "5", store=store).err == ""


def test_list_of_nothing(call: Call, store: str) -> None:
    assert call("dead", "list", "--queue", "x", store=store) == Result(0, "", "no dead messages of queue x\n")
    assert call("dead", "list", "--json", store=store).json == []


def test_show(call: Call, store: str) -> None:
    [row_id] = bury(store, error="why\nand where")
    found = call("dead", "show", str(row_id), "--json", store=store).json
    assert (found["id"], found["status"], found["outcome"], found["attempts"]) == (row_id, "dead", "permanent", 1)
    assert found["payload"] == '{"n":0}'
    assert found["last_error"] == "why\nand where"
    text = call("dead", "show", found["message_id"], store=store).out
    assert f"message_id      {found['message_id']}\n" in text
    assert "last_error      why\n                and where\n" in text


def test_show_of_bytes_and_headers(call: Call, store: str) -> None:
    with psycopg.connect(store) as connection:
        message = NewMessage(event_type="x", payload=b"\xff\x00", content_type="avro/binary", headers={"k": "v"})
        Outbox().enqueue_many(connection, [message])
    found = call("dead", "show", "1", "--json", store=store).json
    assert (found["payload_base64"], found["content_type"], found["headers"]) == (
        "/wA=",
        "avro/binary",
        {"k": "v"},
    )
    assert (found["status"], found["outcome"]) == ("pending", None)
    assert "headers         k: v\n" in call("dead", "show", "1", store=store).out


@pytest.mark.parametrize("identity", ["42", "00000000-0000-4000-8000-000000000000"])
def test_show_of_nothing(call: Call, store: str, identity: str) -> None:
    assert call("dead", "show", identity, store=store) == Result(1, "", f"there is no message {identity}\n")


@pytest.mark.parametrize(("verb", "status"), [("retry", "pending"), ("skip", "done")])
def test_by_id_with_who_and_why(call: Call, store: str, verb: str, status: str) -> None:
    bury(store, 3)
    result = call("dead", verb, "1", "3", "--reason", "fixed", "--actor", "ann", store=store)
    assert result.code == 0
    assert result.out.startswith("2 messages are ")
    assert statuses(store) == {1: status, 2: "dead", 3: status}
    assert audit(store) == [(1, verb, "ann", "fixed"), (3, verb, "ann", "fixed")]


def test_the_actor_is_the_user_by_default(call: Call, store: str) -> None:
    bury(store)
    call("dead", "retry", "1", store=store)
    assert audit(store) == [(1, "retry", getpass.getuser(), None)]


def test_ids_that_are_not_dead_are_told(call: Call, store: str) -> None:
    deliver(store)
    bury(store)
    result = call("dead", "skip", "1", "2", "99", store=store)
    assert (result.code, result.out) == (1, "1 message is skipped\n")
    assert [line.split()[1] for line in result.err.splitlines()] == ["1", "99"]
    assert statuses(store) == {1: "done", 2: "done"}
    assert call("dead", "skip", "2", "--json", store=store).json == {"changed": [], "unchanged": [2]}


def test_all_of_them_in_steps(call: Call, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.cli.dead.PAGE", 2)
    bury(store, 5)
    bury(store, 1, queue="mail")
    result = call("dead", "retry", "--all", "--queue", "default", "--yes", "--json", store=store)
    assert (result.code, result.json) == (0, {"changed": [1, 2, 3, 4, 5], "unchanged": []})
    assert statuses(store)[6] == "dead"
    assert call("dead", "skip", "--all", "--yes", store=store).out == "1 message is skipped\n"
    assert call("dead", "skip", "--all", "--yes", store=store).out == "0 messages are skipped\n"


def test_all_of_them_asks_first(call: Call, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(store)
    refused = call("dead", "retry", "--all", store=store)
    assert refused.code == 2
    assert "standard input is no terminal to ask on: pass --yes" in refused.err
    asked = []

    def answer(question: str, **_: Any) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", answer)
    assert call("dead", "retry", "--all", "--outcome", "permanent", store=store).code == 0
    assert asked == ["Retry all dead messages with outcome permanent?"]
