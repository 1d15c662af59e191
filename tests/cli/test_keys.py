"""``keys``: which ordering keys do not move, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from fencepost import NewMessage, Outbox
from tests.cli.program import Result

Call = Callable[..., Result]
OUTBOX = Outbox()


def ordered(
    url: str, key: str, count: int = 3, queue: str = "default", delay: timedelta | None = None
) -> list[int]:
    with psycopg.connect(url) as connection:
        messages = [
            NewMessage(event_type="e", payload=n, queue=queue, ordering_key=key, delay=delay) for n in range(count)
        ]
        return [each.id for each in OUTBOX.enqueue_many(connection, messages)]


@pytest.fixture
def blocked(store: str) -> str:
    """A store with a key for each reason: ids 1, 4, 7, 11 and 13 are heads."""
    with psycopg.connect(store) as connection:
        for key, count in (('["order","1"]', 3), ("backoff", 3), ("leased", 3)):
            ordered(store, key, count)
            (head,) = OUTBOX.claim(connection, "host:1", batch=1)
            if key == "backoff":
                OUTBOX.reschedule(connection, head, timedelta(minutes=5), "try\nlater")
            elif key != "leased":
                OUTBOX.mark_dead(connection, head, "no such customer\nat all", outcome="permanent")
            connection.commit()
        ordered(store, "moves", 1)
        ordered(store, "delayed", 1, "mail", timedelta(hours=2))
        ordered(store, "delayed", 1, "mail")
        ordered(store, "stranded", 2, "mail", timedelta(hours=2))
        connection.execute(
            "UPDATE outbox SET status = 'blocked', available_at = '9999-12-31 00:00:00+00'"
            " WHERE ordering_key = 'stranded'"
        )
    return store


def without_times(text: str) -> str:
    """Replace durations, which depend on the clock."""
    return re.sub(r"\b(?:\d+[dhms] )?\d+[dhms]\b", "T", text)


def test_a_list_for_people(call: Call, blocked: str) -> None:
    result = call("keys", store=blocked)
    assert (result.code, result.err) == (0, "")
    rows = [re.split(r"  +", line.strip()) for line in without_times(result.out).splitlines()]
    assert rows == [
        ["queue", "ordering_key", "head", "reason", "followers", "age", "detail", "unblock"],
        [
            "default",
            '["order","1"]',
            "1",
            "dead",
            "2",
            "T",
            "permanent: no such customer",
            "fencepost dead retry 1",
        ],
        ["default", "backoff", "4", "backoff", "2", "T", "next attempt in T: try", "-"],
        ["mail", "delayed", "11", "delayed", "1", "T", "due in T", "-"],
        ["mail", "stranded", "13", "stranded", "1", "T", "-", "-"],
    ]


def test_also_what_is_being_published(call: Call, blocked: str) -> None:
    found = without_times(call("keys", "--all", store=blocked).out)
    assert re.search(r"^default +leased +7 +leased +2 +T +lease of host:1 ends in T +-$", found, re.MULTILINE)
    with psycopg.connect(blocked) as connection:
        connection.execute("UPDATE outbox SET lease_until = now() - interval '7 s' WHERE status = 'processing'")
    found = without_times(call("keys", store=blocked).out)
    assert re.search(r"^default +leased +7 +expired +2 +T +lease of host:1 ended T ago +-$", found, re.MULTILINE)


def test_json(call: Call, blocked: str) -> None:
    found = call("keys", "--json", store=blocked).json
    assert found["after"] is None
    assert [each["reason"] for each in found["keys"]] == ["dead", "backoff", "delayed", "stranded"]
    dead, backoff = found["keys"][:2]
    assert dead.pop("age_seconds") >= 0
    assert dead == {
        "queue": "default",
        "ordering_key": '["order","1"]',
        "head_id": 1,
        "reason": "dead",
        "outcome": "permanent",
        "last_error": "no such customer\nat all",
        "due_in_seconds": None,
        "lease_owner": "host:1",
        "lease_left_seconds": None,
        "followers": 2,
        "followers_are_capped": False,
        "unblock": "fencepost dead retry 1",
    }
    assert 290 < backoff["due_in_seconds"] <= 300


def test_what_it_says_to_do_helps(call: Call, blocked: str) -> None:
    command = call("keys", "--json", store=blocked).json["keys"][0]["unblock"]
    result = call(*command.removeprefix("fencepost ").split(), store=blocked)
    assert result.out == "1 message is pending again\nthat frees 1 ordering key, in which 2 messages waited\n"
    assert call("keys", "--json", store=blocked).json["keys"][0]["reason"] == "backoff"


def test_pages_and_filters(call: Call, blocked: str) -> None:
    def heads(*arguments: str) -> list[int]:
        return [each["head_id"] for each in call("keys", "--json", *arguments, store=blocked).json["keys"]]

    assert heads("--queue", "mail") == [11, 13]
    assert heads("--queue", "nosuch") == []
    assert heads("--limit", "2") == [1, 4]
    page = call("keys", "--limit", "1", store=blocked)
    assert page.err == 'there are more: --after default \'["order","1"]\'\n'
    assert call("keys", "--limit", "1", "--json", store=blocked).json["after"] == ["default", '["order","1"]']
    assert heads("--after", "default", '["order","1"]', "--limit", "2") == [4, 11]
    assert call("keys", "--limit", "4", store=blocked).err == ""


def test_nothing(call: Call, store: str) -> None:
    assert call("keys", store=store) == Result(0, "", "no blocked keys\n")
    assert call("keys", "--queue", "mail", store=store) == Result(0, "", "no blocked keys of queue mail\n")
    assert call("keys", "--json", store=store).json == {"keys": [], "after": None}


def test_keys_that_would_drive_a_terminal(call: Call, store: str) -> None:
    ordered(store, "a\x1b[31m\nb" + "x" * 2_000, 1, delay=timedelta(hours=1))
    ordered(store, "a\x1b[31m\nb" + "x" * 2_000, 1)
    result = call("keys", store=store)
    assert "a\\x1b[31m\\nb" + "x" * 2_000 in result.out
    assert "\x1b" not in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--limit", "0"),
        ("--limit", "10001"),
        ("--after", "x"),
        ("--queue", "\x00"),
        ("--queue", "\udcff"),
        ("--after", "x", "a\x00"),
    ],
)
def test_bad_input(call: Call, store: str, arguments: tuple[str, ...]) -> None:
    result = call("keys", "--store", store, *arguments)
    assert (result.code, result.out) == (2, "")
