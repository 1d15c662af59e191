"""``dispatch`` as a real process: what it publishes, how it stops, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from fencepost.cli import serving
from fencepost.embedded import PostgresServer
from fencepost.store.catalog import Names
from tests.cli.program import Program, Result, enqueue, finish, out_of_reach, read_until, statuses

PUBLISHERS = """
import asyncio, time

async def waits(message):
    print("publishing", flush=True)
    await asyncio.sleep(3_600)

async def blocks_the_loop(message):
    print("publishing", flush=True)
    time.sleep(3_600)

async def ignores_its_end(message):
    print("publishing", flush=True)
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            pass

def ends_when_told(message):
    print("publishing", flush=True)
    open("told").read()

def fails(message):
    raise KeyError("odd")

def delivers(message):
    print(message.event_type, flush=True)
"""


@pytest.fixture(autouse=True)
def publishers(folder: Path) -> None:
    folder.joinpath("publishers.py").write_text(PUBLISHERS)


def start(program: Program, publisher: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a dispatcher that is in the middle of publishing a message."""
    process = program.start("dispatch", "--publisher", f"publishers:{publisher}", *arguments)
    read_until(process.stdout, "publishing")
    return process


def counters(result: Result) -> dict[str, str]:
    line = result.err.splitlines()[-1]
    assert "message=stopped" in line, result.err
    return dict(pair.split("=", 1) for pair in line.split())


def row(url: str) -> dict[str, Any]:
    with psycopg.connect(url) as connection:
        [found] = connection.execute("SELECT row_to_json(o) FROM outbox o").fetchall()
    return dict(found[0])


# --- what it publishes ----------------------------------------------------------------------------------------


def test_one_batch_to_stdout(configured: Program, store: str) -> None:
    enqueue(store, 3)
    result = configured.run("dispatch", "--once", "--to", "stdout:")
    assert result.code == 0
    assert [json.loads(line)["payload"] for line in result.out.splitlines()] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert set(statuses(store).values()) == {"done"}
    found = counters(result)
    assert (found["drained"], found["claimed"], found["delivered"]) == ("true", "3", "3")


def test_routes_from_the_file_and_json_logs(configured: Program, store: str, folder: Path) -> None:
    folder.joinpath("fencepost.toml").write_text(
        'log_json = true\n[routes]\n"order.*" = "python:publishers:delivers"\n"*" = "stdout:"\n'
    )
    enqueue(store, event_type="order.created")
    enqueue(store, event_type="invoice.sent")
    result = configured.run("dispatch", "--once")
    assert result.code == 0
    assert {
        line if line == "order.created" else json.loads(line)["event_type"] for line in result.out.splitlines()
    } == {
        "order.created",
        "invoice.sent",
    }
    lines = [json.loads(line) for line in result.err.splitlines()]
    assert (lines[0]["message"], lines[0]["routes"]) == (
        "dispatching",
        "order.*=python:publishers:delivers  *=stdout:",
    )
    assert (lines[-1]["message"], lines[-1]["delivered"]) == ("stopped", 2)


def test_flags_replace_routes_of_the_file(configured: Program, store: str, folder: Path) -> None:
    folder.joinpath("fencepost.toml").write_text('[routes]\n"*" = "python:publishers:fails"\n')
    enqueue(store)
    routes = ("--route", "order.*=python:publishers:delivers", "--to", "stdout:")
    assert configured.run("dispatch", "--once", *routes).out == "order.created\n"


def test_settings_reach_the_dispatcher(configured: Program, store: str) -> None:
    enqueue(store, 3)
    enqueue(store, 3, queue="mail")
    arguments = ("--queue", "mail", "--batch", "2", "--owner", "w1", "--max-attempts", "1")
    result = configured.run("dispatch", "--once", "--publisher", "publishers:fails", *arguments)
    assert counters(result)["claimed"] == "2"
    assert list(statuses(store).values()).count("dead") == 2
    assert "owner=w1 queues=mail batch=2" in result.err


def test_it_goes_on_until_it_is_stopped(configured: Program, store: str) -> None:
    process = configured.start("dispatch", "--publisher", "publishers:delivers")
    read_until(process.stderr, "message=dispatching")
    for event_type in ("a.one", "a.two"):
        enqueue(store, event_type=event_type)
        read_until(process.stdout, event_type)
    result = finish(process, signal.SIGTERM)
    assert result.code == 0
    assert counters(result)["delivered"] == "2"


# --- how it stops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_one(configured: Program, number: signal.Signals) -> None:
    process = configured.start("dispatch", "--to", "stdout:")
    read_until(process.stderr, "message=dispatching")
    result = finish(process, number)
    assert result.code == 0
    assert counters(result)["drained"] == "true"


def test_sigterm_before_it_reached_the_database(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop"
        process = program.start("dispatch", "--to", "stdout:", "--store", address)
        connection, _ = silent.accept()
        with connection:
            assert finish(process, signal.SIGTERM) == Result(0, "", "")


def test_what_is_in_flight_is_finished(configured: Program, store: str, folder: Path) -> None:
    os.mkfifo(folder / "told")
    enqueue(store)
    process = start(configured, "ends_when_told", "--grace", "60s")
    process.send_signal(signal.SIGTERM)
    with folder.joinpath("told").open("w"):
        pass
    result = finish(process)
    assert (result.code, counters(result)["delivered"]) == (0, "1")
    assert statuses(store) == {1: "done"}


@pytest.mark.parametrize("publisher", ["waits", "ignores_its_end"])
def test_the_grace_time_ended_first(configured: Program, store: str, publisher: str) -> None:
    enqueue(store)
    result = finish(start(configured, publisher, "--grace", "300ms"), signal.SIGTERM)
    assert result.code == 1
    assert counters(result)["drained"] == "false"
    found = row(store)
    # Its outcome is unknown, so the attempt counts; and nobody has to wait for the lease to end.
    assert (found["status"], found["attempts"], found["lease_until"]) == ("pending", 1, None)
    assert "Traceback" not in result.err


def test_a_second_signal_ends_the_grace_time(configured: Program, store: str) -> None:
    enqueue(store)
    process = start(configured, "waits", "--grace", "1h", "--publish-timeout", "50s")
    while process.poll() is None:
        # Two that come before the first is seen are one: signals do not queue.
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    result = finish(process)
    assert (result.code, counters(result)["drained"]) == (1, "false")
    assert row(store)["status"] == "pending"


def test_a_blocked_event_loop_does_not_keep_it(configured: Program, store: str) -> None:
    enqueue(store)
    assert finish(start(configured, "blocks_the_loop", "--grace", "300ms"), signal.SIGTERM).code == 1
    assert row(store)["status"] == "processing"  # until its lease ends


def test_a_reader_that_does_not_read_does_not_keep_it(configured: Program, store: str) -> None:
    enqueue(store, 1_500)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = configured.start("dispatch", "--to", "stdout:", "--grace", "300ms", stdout=writer)
    read_until(process.stderr, "message=dispatching")
    process.send_signal(signal.SIGTERM)
    # Far below the seven seconds that the stuck line itself would take.
    assert process.wait(timeout=5) in (0, 1)
    os.close(reader)
    os.close(writer)


def test_a_database_that_is_gone_does_not_keep_it(
    configured: Program, store: str, postgres18: PostgresServer
) -> None:
    enqueue(store)
    process = start(configured, "waits", "--grace", "300ms")
    with out_of_reach(store, postgres18):
        assert finish(process, signal.SIGTERM).code == 1


# --- what keeps it from starting, and from going on -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "routes: nothing says where messages go"),
        (("--to", "pigeon://h/t"), 2, "no publisher for 'pigeon'"),
        (("--publisher", "publishers:nothing"), 2, "publisher publishers:nothing cannot be loaded"),
        (
            ("--to", "stdout:", "--lease", "5s"),
            2,
            "publish_timeout: a publish may take 10 s but the lease ends after 5 s",
        ),
        (("--to", "stdout:", "--batch", "many"), 2, "batch (flag --batch): expected a whole number, not 'many'"),
        (("--to", "stdout:", "--table", "other"), 4, "do not exist: run `fencepost migrate`"),
        (("--to", "stdout:", "--store", "postgresql://127.0.0.1:1/x"), 3, "Connection refused"),
    ],
)
def test_it_does_not_start(configured: Program, arguments: tuple[str, ...], code: int, says: str) -> None:
    result = configured.run("dispatch", *arguments)
    assert result.code == code
    assert says in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_an_unclassified_exception_stops_it_where_asked(
    configured: Program, store: str, arguments: tuple[str, ...]
) -> None:
    enqueue(store)
    result = configured.run("dispatch", "--publisher", "publishers:fails", "--on-unexpected", "stop", *arguments)
    assert result.code == 5
    assert result.err.splitlines()[-1].startswith("fencepost: error: ")
    assert "KeyError: 'odd'" in result.err
    assert row(store)["status"] == "pending"


def test_the_first_look_leaves_no_transaction_open(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be stopped in it for as long as somebody likes."""
    with psycopg.connect(database18) as connection:
        Outbox().migrate(connection)
    states: list[psycopg.pq.TransactionStatus] = []
    check = Outbox.check_schema

    def checked(self: Outbox, connection: psycopg.Connection[Any]) -> list[str]:
        problems = check(self, connection)
        states.append(connection.info.transaction_status)
        return problems

    monkeypatch.setattr(Outbox, "check_schema", checked)
    serving._refuse_missing_tables(database18, "dispatch", Names())
    assert states == [psycopg.pq.TransactionStatus.IDLE]
