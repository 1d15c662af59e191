"""``dead``: look at dead messages, and decide what becomes of them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fencepost import NewMessage, Outbox
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.store.expand import Expansion, close_and_expand
from tests.cli.program import Result, bury, deliver, enqueue, statuses

Call = Callable[..., Result]
NOTHING_FREED = {"keys": 0, "messages": 0, "is_capped": False}


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


def test_show_of_an_event_that_went_to_several_destinations(call: Call, store: str) -> None:
    enqueue(store)
    with psycopg.connect(store) as connection:
        [held] = Outbox().claim(connection, "w")
        operation = close_and_expand(Outbox().catalog, [], [Expansion(held, ("events", "hook"))])
        run(operation, driver_for(connection).execute)
    message_id = str(held.message.message_id)
    found = call("dead", "show", message_id, "--json", store=store).json
    assert (found["id"], found["status"], found["outcome"], found["queue"]) == (1, "done", "expanded", "default")
    others = [(each["id"], each["status"], each["outcome"], each["queue"]) for each in found["others"]]
    assert others == [(2, "pending", None, "events"), (3, "pending", None, "hook")]
    assert {each["message_id"] for each in found["others"]} == {message_id}
    text = call("dead", "show", message_id, store=store).out
    assert [block.splitlines()[0].split() for block in text.split("\n\n")] == [
        ["id", "1"],
        ["id", "2"],
        ["id", "3"],
    ]
    assert "outcome         expanded\n" in text
    assert call("dead", "show", "3", "--json", store=store).json["others"] == []


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
    assert call("dead", "skip", "2", "--json", store=store).json == {
        "changed": [],
        "unchanged": [2],
        "freed": NOTHING_FREED,
    }


def test_all_of_them_in_steps(call: Call, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.cli.dead.PAGE", 2)
    bury(store, 5)
    bury(store, 1, queue="mail")
    result = call("dead", "retry", "--all", "--queue", "default", "--yes", "--json", store=store)
    assert (result.code, result.json) == (
        0,
        {"changed": [1, 2, 3, 4, 5], "unchanged": [], "freed": NOTHING_FREED},
    )
    assert statuses(store)[6] == "dead"
    assert call("dead", "skip", "--all", "--yes", store=store).out == "1 message is skipped\n"
    assert call("dead", "skip", "--all", "--yes", store=store).out == "0 messages are skipped\n"


@pytest.mark.parametrize("verb", ["retry", "skip"])
def test_what_a_change_frees_is_said(call: Call, store: str, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr("fencepost.cli.dead.PAGE", 1)
    outbox = Outbox()
    with psycopg.connect(store) as connection:
        for key in ("a", "b"):
            for n in range(3):
                outbox.enqueue(connection, "e", n, ordering_key=key)
            outbox.mark_dead(connection, outbox.claim(connection, "w", batch=1), "x")
    result = call("dead", verb, "1", "--json", store=store)
    assert result.json["freed"] == {"keys": 1, "messages": 2, "is_capped": False}
    assert "that frees 1 ordering key, in which 2 messages waited" in call("dead", verb, "4", store=store).out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were asked; each is answered with yes."""
    questions: list[str] = []

    def answer(question: str, **_: Any) -> bool:
        questions.append(question)
        return True

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", answer)
    return questions


def test_all_of_them_asks_first(call: Call, store: str) -> None:
    bury(store)
    refused = call("dead", "retry", "--all", store=store)
    assert refused.code == 2
    assert "standard input is no terminal to ask on: pass --yes" in refused.err
    assert statuses(store) == {1: "dead"}


def test_the_question_says_how_many(
    call: Call, store: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.dead.PAGE", 2)
    for queue in ("default", "mail"):
        bury(store, 3, queue=queue)
        bury(store, 1, queue=queue, outcome="exhausted")
    for filters in (
        ("--queue", "mail", "--outcome", "permanent"),
        ("--queue", "mail"),
        ("--outcome", "permanent"),
        (),
        (),
    ):
        assert call("dead", "retry", "--all", *filters, store=store).code == 0
    assert asked == [
        "Retry 3 dead messages of queue mail with outcome permanent?",
        "Retry 1 dead message of queue mail?",
        "Retry 3 dead messages with outcome permanent?",
        "Retry 1 dead message?",  # and none where there is nothing to ask about
    ]


def test_no_changes_nothing_and_no_transaction_waits_for_the_answer(
    call: Call, store: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(store, 2)
    states: list[str] = []

    def answer(_question: str, **_: Any) -> bool:
        with psycopg.connect(store) as connection:
            query = "SELECT state FROM pg_stat_activity WHERE application_name = 'fencepost dead'"
            states.extend(state for (state,) in connection.execute(query))
        return False

    monkeypatch.setattr("click.confirm", answer)
    assert call("dead", "skip", "--all", store=store) == Result(1, "", "nothing was changed\n")
    assert states == ["idle"]
    assert set(statuses(store).values()) == {"dead"}


def test_progress_is_told_and_each_step_is_committed(
    call: Call, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.dead.PAGE", 2)
    monkeypatch.setattr("fencepost.cli.progress.PROGRESS_SECONDS", 0.0)
    bury(store, 5)
    with psycopg.connect(store) as connection:
        connection.execute("ALTER TABLE outbox_audit ADD COLUMN step xid8 DEFAULT pg_current_xact_id()")
    result = call("dead", "skip", "--all", "--yes", store=store)
    assert result == Result(0, "5 messages are skipped\n", "skip: 2 of 5\nskip: 4 of 5\nskip: 5 of 5\n")
    with psycopg.connect(store) as connection:
        steps = connection.execute("SELECT count(*) FROM outbox_audit GROUP BY step ORDER BY 1").fetchall()
    assert steps == [(1,), (2,), (2,)]


# --- numbers out of range -------------------------------------------------------------------------------------

TOO_LARGE = ("9223372036854775808", "99999999999999999999")


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "x", *TOO_LARGE])
@pytest.mark.parametrize("verb", ["retry", "skip", "show"])
def test_an_id_that_cannot_be_one(call: Call, store: str, verb: str, number: str) -> None:
    result = call("dead", verb, "--store", store, "--", "1", number) if verb != "show" else None
    result = result or call("dead", verb, "--store", store, "--", number)
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [*(("--after", number) for number in ("-1", *TOO_LARGE)), ("--limit", "0"), ("--limit", TOO_LARGE[0])],
)
def test_a_place_or_a_limit_out_of_range(call: Call, store: str, arguments: tuple[str, str]) -> None:
    assert call("dead", "list", *arguments, store=store).code == 2


def test_the_largest_id(call: Call, store: str) -> None:
    largest = str(2**63 - 1)
    assert call("dead", "show", largest, store=store) == Result(1, "", f"there is no message {largest}\n")
    assert call("dead", "retry", largest, store=store).code == 1
    assert call("dead", "list", "--after", largest, store=store).code == 0
