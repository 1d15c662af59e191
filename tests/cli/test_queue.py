"""``pause``, ``resume`` and ``queue``."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from tests.cli.program import Result, enqueue, open_breaker

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


def test_a_pause_with_its_reason(call: Call, store: str) -> None:
    enqueue(store, queue="mail")
    call("pause", "mail", "--reason", "moving\nto another host\x1b[31m", "--actor", "ann", store=store)
    line = "queue mail: paused: moving\\nto another host\\x1b[31m"
    assert line in call("status", store=store).out.splitlines()
    assert call("queue", "list", store=store).err == line + "\n"
    reason = "pause_reason      moving\\nto another host\\x1b[31m\n"
    assert reason in call("queue", "show", "mail", store=store).out
    for found in (shown(call, store), call("queue", "list", "--json", store=store).json[0]):
        assert found["pause_reason"] == "moving\nto another host\x1b[31m"
    found = call("status", "--json", store=store).json
    assert found["pause_reasons"] == {"mail": "moving\nto another host\x1b[31m"}
    assert found["queues"][0]["pause_reason"] == "moving\nto another host\x1b[31m"
    again = call("pause", "mail", "--reason", "another one", store=store)
    assert (again.code, again.out) == (0, "queue mail was paused already\n")
    assert again.err == "the reason was not kept: only a pause that begins has one\n"
    call("resume", "mail", store=store)
    assert shown(call, store)["pause_reason"] is None
    assert call("status", "--json", store=store).json["pause_reasons"] == {}


# --- breakers ------------------------------------------------------------------------------------------------


def test_an_open_breaker_is_hard_to_overlook(call: Call, store: str) -> None:
    enqueue(store, 2, queue="hook")
    assert shown(call, store, "hook")["breaker"] is None
    assert "breaker           closed\n" in call("queue", "show", "hook", store=store).out
    open_breaker(store, "hook", "connection\nrefused\x1b[31m", pause=100.5)
    text = "open for 0s, next probe in 1m 40s: connection\\nrefused\\x1b[31m"
    lines = call("status", store=store).out.splitlines()
    assert lines[1].split()[:4] == ["hook", "(breaker", "open)", "2"]
    assert lines[2] == f"queue hook: breaker {text}"
    listed = call("queue", "list", store=store)
    assert listed.out.splitlines()[0].split()[-1] == "breaker"
    assert listed.out.splitlines()[1].split()[-1] == "open"
    assert listed.err == f"queue hook: breaker {text}\n"
    assert f"breaker           {text}\n" in call("queue", "show", "hook", store=store).out
    status = call("status", "--json", store=store).json
    for found in (
        shown(call, store, "hook"),
        call("queue", "list", "--json", store=store).json[0],
        *status["queues"],
    ):
        assert found["breaker"].keys() == {"open_for_seconds", "probe_in_seconds", "probes_failed", "error"}
        assert 0 <= found["breaker"]["open_for_seconds"] < 60
        assert 40 < found["breaker"]["probe_in_seconds"] <= 100.5
        assert (found["breaker"]["probes_failed"], found["breaker"]["error"]) == (0, "connection\nrefused\x1b[31m")
    assert list(status["breakers"]) == ["hook"]
    with psycopg.connect(store) as connection:
        connection.execute("UPDATE outbox_queue SET breaker_trips = 1, breaker_probe_at = now() - interval '1 s'")
    assert "open for 0s, 1 probe failed, next probe due: " in call("queue", "show", "hook", store=store).out
    assert shown(call, store, "hook")["breaker"]["probe_in_seconds"] == 0


def test_an_open_breaker_of_a_queue_without_messages_is_shown_as_well(call: Call, store: str) -> None:
    open_breaker(store, "hook", "down")
    call("pause", "hook", store=store)
    assert call("status", store=store).out.startswith("queue hook: breaker open for 0s, next probe in ")
    enqueue(store, queue="hook")
    assert "hook (paused, breaker open)" in call("status", store=store).out


def test_closing_a_breaker_by_hand(call: Call, store: str) -> None:
    enqueue(store, 2, queue="hook")
    open_breaker(store, "hook", "down")
    assert claimable(store, "hook") == 0
    assert call("queue", "close-breaker", "hook", store=store) == Result(
        0, "the breaker of queue hook is closed\n", ""
    )
    assert claimable(store, "hook") == 2
    again = call("queue", "close-breaker", "hook", store=store)
    assert again == Result(0, "the breaker of queue hook was not open\n", "")
    slip = call("queue", "close-breaker", "hok", "--json", store=store)
    assert (slip.code, slip.json) == (0, {"queue": "hok", "breaker": None, "changed": False})
    assert slip.err == "queue hok holds no open message: is that its name?\n"


# --- settings ------------------------------------------------------------------------------------------------

EVERYTHING = (
    *("--weight", "7", "--concurrency", "3", "--lease", "90s", "--publish-timeout", "1m", "--max-attempts", "5"),
    *("--backoff-base", "250ms", "--backoff-cap", "1h", "--sequenced", "--ledger"),
    *("--rate", "2.5", "--breaker-failures", "0", "--breaker-cap", "20s"),
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
    "ledger": False,
    "rate": None,
    "breaker_failures": None,
    "breaker_cap_seconds": None,
    "pause_reason": None,
    "breaker": None,
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
        "ledger": True,
        "rate": 2.5,
        "breaker_failures": 0,
        "breaker_cap_seconds": 20.0,
        "changed_by": "ann",
        "pause_reason": None,
        "breaker": None,
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
        "ledger",
        "rate",
        "breaker-failures",
        "breaker-cap",
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
        *("backoff_base", "backoff_cap", "sequenced", "ledger", "rate", "breaker_failures", "breaker_cap"),
        *("changed_at", "changed_by", "breaker"),
    ]
    mail, sms = (line.split() for line in listed[1:])
    settings = ["7", "3", "1m30s", "1m", "5", "250ms", "1h", "yes", "yes", "2.5", "0", "20s"]
    assert mail[:14] == ["mail", "no", *settings]
    assert mail[15:] == ["ann\\x1b[31m", "closed"]
    assert sms[:14] == ["sms", "yes", "1", *["-"] * 6, "no", "no", "-", "-", "-"]
    assert "publish_timeout   1m\n" in call("queue", "show", "mail", store=store).out


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
    (("--rate", "0"), "0.0 is not in the range"),
    (("--rate", "nan"), "must be a number of messages a second"),
    (("--rate", "fast"), "is not a valid float"),
    (("--breaker-failures", "-1"), "is not in the range"),
    (("--breaker-cap", "0s"), "breaker_cap: must be a duration above 0"),
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
@pytest.mark.parametrize(
    "verb",
    [("pause",), ("resume",), ("queue", "show"), ("queue", "close-breaker"), ("queue", "set", "--weight", "1")],
)
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
