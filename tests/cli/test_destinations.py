"""Destinations from the file to the receiver: real processes, a real receiver that is down and comes up."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from fencepost import Outbox
from tests.cli.program import PATIENCE, Program, Result, enqueue, finish, read_until

Call = Callable[..., Result]

PUBLISHERS = """
def delivers(message):
    print(message.event_type, flush=True)
"""
QUICK = 'breaker_failures = 2\nbreaker_cap = "300ms"\nbackoff_base = "50ms"\nbackoff_cap = "200ms"\n'
FORM = QUICK + 'poll_interval = "200ms"\n'


@pytest.fixture(autouse=True)
def publishers(folder: Path) -> None:
    folder.joinpath("publishers_of_this_test.py").write_text(PUBLISHERS)


def write(folder: Path, text: str) -> None:
    folder.joinpath("fencepost.toml").write_text(text)


def until(holds: Callable[[], bool]) -> None:
    """Wait for a state of the database."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def outcomes(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT queue, coalesce(outcome, status), count(*), max(attempts) FROM outbox"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()


@pytest.fixture
def port() -> int:
    """A port on which nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        found: int = reserved.getsockname()[1]
    return found


@contextmanager
def receiver(port: int, status: int = 200) -> Iterator[list[str]]:
    """Take requests; yield the message ids of those taken."""
    taken: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            taken.append(self.headers["Fencepost-Message-Id"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield taken
        finally:
            server.shutdown()
            thread.join()


def test_one_destination_is_down_and_the_other_goes_on(
    configured: Program, call: Call, store: str, folder: Path, port: int
) -> None:
    write(
        folder,
        f"""{FORM}
        [destinations]
        events = "python:publishers_of_this_test:delivers"
        hook = {{ url = "http://127.0.0.1:{port}/hook", timeout = 2, allow_private = true }}
        [routes]
        "order.*" = ["events", "hook"]
        """,
    )
    enqueue(store, 5)
    process = configured.start("dispatch", "--max-attempts", "3")
    for _ in range(5):
        read_until(process.stdout, "order.created")
    until(lambda: "hook" in call("status", "--json", store=store).json["breakers"])
    found = call("status", store=store)
    [line] = [line for line in found.out.splitlines() if line.startswith("queue hook: breaker open for ")]
    assert f"127.0.0.1:{port}" in line
    assert "hook (breaker open)" in found.out
    assert "breaker           open for " in call("queue", "show", "hook", store=store).out
    assert "queue hook: open for " in call("doctor", store=store).out
    # Many more failed probes than a message has attempts: none of them is charged.
    until(lambda: call("queue", "show", "hook", "--json", store=store).json["breaker"]["probes_failed"] >= 5)
    assert [row[:3] for row in outcomes(store)] == [
        ("default", "expanded", 5),
        ("events", "delivered", 5),
        ("hook", "pending", 5),
    ]
    with receiver(port) as taken:
        until(lambda: ("hook", "delivered", 5) in [row[:3] for row in outcomes(store)])
        enqueue(store, 3)
        until(lambda: ("hook", "delivered", 8) in [row[:3] for row in outcomes(store)])
    assert len(taken) == len(set(taken)) == 8
    assert call("status", "--json", store=store).json["breakers"] == {}
    result = finish(process, signal.SIGTERM)
    assert result.code == 0
    assert "the breaker of queue hook opens" in result.err
    assert "the breaker of queue hook is closed" in result.err


def test_a_disabled_webhook_pauses_its_queue_and_keeps_the_messages(
    configured: Program, call: Call, store: str, folder: Path, port: int
) -> None:
    write(
        folder,
        f"""{FORM}
        [destinations.hook]
        url = "http://127.0.0.1:{port}/hook"
        allow_private = true
        [routes]
        "*" = "hook"
        """,
    )
    enqueue(store)
    with receiver(port, 410):
        process = configured.start("dispatch", "--owner", "w1")
        until(lambda: call("status", "--json", store=store).json["paused"] == ["hook"])
        assert finish(process, signal.SIGTERM).code == 0
    assert outcomes(store) == [("default", "expanded", 1, 1), ("hook", "pending", 1, 0)]
    found = call("queue", "show", "hook", "--json", store=store).json
    assert found["changed_by"] == "w1"
    assert "410" in found["pause_reason"]
    assert f"queue hook: paused: {found['pause_reason']}" in call("status", store=store).out.splitlines()
    call("resume", "hook", store=store)
    with receiver(port) as taken:
        assert configured.run("dispatch", "--once").code == 0
    assert len(taken) == 1


def test_flags_and_what_the_log_says_of_them(configured: Program, store: str) -> None:
    enqueue(store, 2)
    enqueue(store, 1, queue="direct")
    result = configured.run(
        *("dispatch", "--once", "--queue", "default"),
        *("--destination", "one=stdout:", "--destination", "two=python:publishers_of_this_test:delivers"),
        *("--route", "order.*=one, two"),
    )
    assert (result.code, result.out) == (0, "")
    assert 'destinations="one=stdout:  two=python:publishers_of_this_test:delivers"' in result.err
    assert 'routes="order.*=one,two"' in result.err
    assert outcomes(store) == [
        ("default", "expanded", 2, 1),
        ("direct", "pending", 1, 0),
        ("one", "pending", 2, 0),
        ("two", "pending", 2, 0),
    ]
    # Into the queue of a destination messages may come without any route.
    result = configured.run("dispatch", "--once", "--destination", "direct=stdout:", "--queue", "direct")
    assert len(result.out.splitlines()) == 1
    assert ("direct", "delivered", 1, 1) in outcomes(store)


def test_to_publishes_in_place(configured: Program, store: str) -> None:
    enqueue(store, 2)
    result = configured.run("dispatch", "--once", "--to", "stdout:")
    assert len(result.out.splitlines()) == 2
    assert outcomes(store) == [("default", "delivered", 2, 1)]


def test_a_rate_holds_for_all_workers_together(configured: Program, call: Call, store: str, folder: Path) -> None:
    write(folder, FORM + '[routes]\n"*" = "python:publishers_of_this_test:delivers"\n')
    call("queue", "set", "default", "--rate", "5", store=store)
    enqueue(store, 20)
    began = time.monotonic()
    workers = [configured.start("dispatch") for _ in range(2)]
    until(lambda: outcomes(store) == [("default", "delivered", 20, 1)])
    # One second's worth at once, then 5 a second.
    assert time.monotonic() - began > 2.5
    assert [finish(process, signal.SIGTERM).code for process in workers] == [0, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[destinations]\na = "stdout:"\nb = "stdout:"\n[routes]\n"*" = ["a", "c"]',
            "routes (file fencepost.toml): '*' leads to 'c', which is no destination: there are a, b "
            "(destinations: file fencepost.toml)",
        ),
        (
            '[routes]\n"*" = "mailer"',
            "routes (file fencepost.toml): '*' leads to 'mailer', which is no destination: there are none "
            "(destinations: default)",
        ),
        (
            '[[routes]]\nqueue = "mail"\nto = "https://u:hunter2@h/?nosuch=hunter2"',
            "routes (file fencepost.toml): *[queue=mail]: https://***@h/?nosuch=***: unknown option 'nosuch'",
        ),
        (
            '[destinations.hook]\nurl = "https://h/?timeout=1"\ntimeout = "hunter2"',
            "destinations (file fencepost.toml): hook: https://h/?timeout=***&timeout=***: option 'timeout' is",
        ),
        (
            '[destinations]\nhook = { url = "stdout:", password = "hunter2" }',
            "destinations (file fencepost.toml): hook: stdout:?password=***: unknown option 'password'",
        ),
        (
            '[destinations]\nhook = "python:nowhere_at_all:x"',
            "destinations (file fencepost.toml): hook: publisher nowhere_at_all:x cannot be loaded",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    call: Call, store: str, folder: Path, text: str, says: str
) -> None:
    write(folder, text)
    check = call("config", "check", store=store)
    assert (check.code, check.err) == (1, "")
    assert check.out.startswith(says)
    result = call("dispatch", "--debug", store=store)
    assert (result.code, result.out) == (2, "")
    assert f"fencepost: error: {says}" in result.err
    shown = call("config", "show", store=store)
    assert shown.code == 0
    printed = "".join(each.out + each.err for each in (check, result, shown))
    assert "hunter2" not in printed
    assert str(urlsplit(store).password) not in printed


def test_what_others_cannot_tell_from_the_file_they_do_not_need(call: Call, store: str, folder: Path) -> None:
    """A route to a destination that is only given as a flag of `dispatch`."""
    write(folder, '[routes]\n"*" = "hook"')
    assert call("status", store=store).code == 0
    assert call("config", "check", "--destination", "hook=stdout:", store=store).code == 0


def test_two_messages_of_one_event_have_one_identity(configured: Program, store: str) -> None:
    enqueue(store)
    flags = ("--destination", "a=stdout:", "--destination", "b=stdout:", "--route", "*=a,b")
    process = configured.start("dispatch", *flags)
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert finish(process, signal.SIGTERM).code == 0
    assert len({line["message_id"] for line in lines}) == 1
    with psycopg.connect(store) as connection:
        found = Outbox().stats(connection)
    assert (found.queues, found.done) == ((), 3)
