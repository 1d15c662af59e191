"""``pause``, ``resume`` and ``queue``."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from tests.cli.program import Result, enqueue

Call = Callable[..., Result]


def claimable(url: str, queue: str) -> int:
    with psycopg.connect(url) as connection:
        found = len(Outbox().claim(connection, "w", queues=[queue]))
        connection.rollback()
    return found


# --- pause and resume ----------------------------------------------------------------------------------------


def test_pause_and_resume(call: Call, store: str) -> None:
    enqueue(store, 2, queue="mail")
    assert call("pause", "mail", store=store) == Result(0, "queue mail is paused\n", "")
    assert claimable(store, "mail") == 0
    assert call("pause", "mail", store=store) == Result(0, "queue mail was paused already\n", "")
    assert call("resume", "mail", store=store) == Result(0, "queue mail goes on\n", "")
    assert claimable(store, "mail") == 2
    assert call("resume", "mail", store=store) == Result(0, "queue mail was not paused already\n", "")


def test_json_of_pause_and_resume(call: Call, store: str) -> None:
    enqueue(store, queue="mail")
    for verb, paused, changed in (
        ("pause", True, True),
        ("pause", True, False),
        ("resume", False, True),
        ("resume", False, False),
    ):
        result = call(verb, "mail", "--json", store=store)
        assert result.json == {"queue": "mail", "paused": paused, "changed": changed}


def test_a_queue_without_messages_may_be_a_slip(call: Call, store: str) -> None:
    result = call("pause", "mial", store=store)
    assert result == Result(0, "queue mial is paused\n", "queue mial holds no open message: is that its name?\n")


def test_status_shows_what_is_paused(call: Call, store: str) -> None:
    enqueue(store, 1, queue="mail")
    enqueue(store, 1, queue="sms")
    call("pause", "mail", store=store)
    call("pause", "empty", store=store)
    lines = call("status", store=store).out.splitlines()
    assert lines[1].split()[:3] == ["mail", "(paused)", "1"]
    assert lines[2].split()[:2] == ["sms", "1"]
    assert "paused: empty, mail (see `fencepost resume`)" in lines
    found = call("status", "--json", store=store).json
    assert found["paused"] == ["empty", "mail"]
    assert {each["queue"]: each["paused"] for each in found["queues"]} == {"mail": True, "sms": False}


# --- settings ------------------------------------------------------------------------------------------------

EVERYTHING = (
    *("--weight", "7", "--concurrency", "3", "--lease", "90s", "--publish-timeout", "1m", "--max-attempts", "5"),
    *("--backoff-base", "250ms", "--backoff-cap", "1h", "--sequenced"),
)
NOTHING = {
    "paused": False,
    "weight": 1,
    "concurrency": None,
    "lease_seconds": None,
    "publish_timeout_seconds": None,
    "max_attempts": None,
    "backoff_base_seconds": None,
    "backoff_cap_seconds": None,
    "sequenced": False,
}


def shown(call: Call, store: str, queue: str = "mail") -> dict[str, Any]:
    found: dict[str, Any] = call("queue", "show", queue, "--json", store=store).json
    return found


def test_everything_at_once_and_who_did_it(call: Call, store: str) -> None:
    result = call("queue", "set", "mail", *EVERYTHING, "--actor", "ann", "--json", store=store)
    assert (result.code, result.err) == (0, "")
    found = result.json
    assert found == shown(call, store)
    assert found.pop("changed_at").endswith("+00:00")
    assert found == {
        "queue": "mail",
        "paused": False,
        "weight": 7,
        "concurrency": 3,
        "lease_seconds": 90.0,
        "publish_timeout_seconds": 60.0,
        "max_attempts": 5,
        "backoff_base_seconds": 0.25,
        "backoff_cap_seconds": 3_600.0,
        "sequenced": True,
        "changed_by": "ann",
    }


def test_what_is_not_mentioned_stays_and_what_is_unset_goes(call: Call, store: str) -> None:
    call("queue", "set", "mail", *EVERYTHING, store=store)
    call("pause", "mail", store=store)
    call("queue", "set", "mail", "--weight", "9", "--no-sequenced", "--unset", "lease", store=store)
    found = shown(call, store)
    assert (found["weight"], found["sequenced"], found["lease_seconds"]) == (9, False, None)
    assert (found["paused"], found["concurrency"], found["backoff_cap_seconds"]) == (True, 3, 3_600.0)
    assert found["changed_by"] == getpass.getuser()
    names = (
        "weight",
        "concurrency",
        "publish-timeout",
        "max-attempts",
        "backoff-base",
        "backoff-cap",
        "sequenced",
    )
    call("queue", "set", "mail", *(word for name in names for word in ("--unset", name)), store=store)
    assert shown(call, store).items() >= (NOTHING | {"paused": True}).items()


def test_a_queue_without_settings_of_its_own(call: Call, store: str) -> None:
    assert shown(call, store) == NOTHING | {"queue": "mail", "changed_at": None, "changed_by": None}
    assert call("queue", "list", store=store) == Result(0, "", "no queue has settings of its own\n")
    assert call("queue", "list", "--json", store=store).json == []


def test_for_people(call: Call, store: str) -> None:
    call("queue", "set", "mail", *EVERYTHING, "--actor", "ann\x1b[31m", store=store)
    call("pause", "sms", "--actor", "bob", store=store)
    listed = call("queue", "list", store=store).out.splitlines()
    assert listed[0].split() == [
        *("queue", "paused", "weight", "concurrency", "lease", "publish_timeout", "max_attempts"),
        *("backoff_base", "backoff_cap", "sequenced", "changed_at", "changed_by"),
    ]
    mail, sms = (line.split() for line in listed[1:])
    assert mail[:10] == ["mail", "no", "7", "3", "1m30s", "1m", "5", "250ms", "1h", "yes"]
    assert mail[11] == "ann\\x1b[31m"
    assert sms[:10] == ["sms", "yes", "1", "-", "-", "-", "-", "-", "-", "no"]
    assert "publish_timeout  1m\n" in call("queue", "show", "mail", store=store).out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("--lease", "10s"), "lease"), (("--publish-timeout", "60s"), "publish_timeout")],
)
def test_what_does_not_fit_workers_usual_settings_is_warned_of(
    call: Call, store: str, arguments: tuple[str, ...], name: str
) -> None:
    result = call("queue", "set", "mail", *arguments, store=store)
    assert result.code == 0
    assert result.err.startswith(f"warning: {name}: a publish may take")
    assert "does not serve this queue" in result.err


BAD = [
    (("--weight", "0"), "0 is not in the range"),
    (("--weight", "1001"), "is not in the range"),
    (("--weight", "x"), "is not a valid integer"),
    (("--concurrency", "0"), "is not in the range"),
    (("--max-attempts", "0"), "is not in the range"),
    (("--lease", "soon"), "expected a duration"),
    (("--lease", "99ms"), "lease: must be a duration from 0.1 s to a day"),
    (("--lease", "2d"), "lease: must be a duration from 0.1 s to a day"),
    (("--publish-timeout", "0s"), "publish_timeout: must be a duration above 0"),
    (("--lease", "5s", "--publish-timeout", "5s"), "publish_timeout: a publish may take 5 s but the lease ends"),
    (("--backoff-base", "2s", "--backoff-cap", "1s"), "backoff_base: 2 s is above backoff_cap, 1 s"),
    (("--unset", "paused"), "'paused' is not one of"),
    (("--weight", "2", "--unset", "weight"), "--weight and --unset weight exclude each other"),
    ((), "say what to change"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_what_cannot_work_is_refused_without_a_database(call: Call, arguments: tuple[str, ...], says: str) -> None:
    result = call("queue", "set", "mail", *arguments, store="postgresql://nobody@127.0.0.1:1/nothing")
    assert (result.code, result.out) == (2, "")
    assert says in result.err.splitlines()[-1]


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\x00b", "\udcff", "x" * 101])
@pytest.mark.parametrize("verb", [("pause",), ("resume",), ("queue", "show"), ("queue", "set", "--weight", "1")])
def test_a_name_that_no_queue_can_have(call: Call, verb: tuple[str, ...], name: str) -> None:
    result = call(*verb, name, store="postgresql://nobody@127.0.0.1:1/nothing")
    assert (result.code, result.out) == (2, "")
    assert "fencepost: error: queue" in result.err


def test_what_cannot_work_with_what_stands_there(call: Call, store: str) -> None:
    call("queue", "set", "mail", "--publish-timeout", "30s", store=store)
    result = call("queue", "set", "mail", "--lease", "30s", "--weight", "5", store=store)
    assert result.code == 2
    assert "lower publish_timeout or raise lease" in result.err
    assert shown(call, store)["weight"] == 1
