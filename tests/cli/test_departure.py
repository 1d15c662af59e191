"""``dispatch`` is gone in time after SIGTERM, whatever a publisher or the database does: real processes, timed."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from fencepost import Outbox
from tests.cli.program import Program, Result, enqueue, finish, read_until, statuses
from tests.postgres import pg18_bin_dir, running_server
from tests.store.rows import wait_for

GRACE = 0.5
PROMISE = GRACE + 1.0

STUCK = """
import asyncio, ctypes, signal, sys, threading, time

def say(text):
    print(text, flush=True)

def block():
    while True:
        time.sleep(3_600)

def block_in_c():
    # Like a driver that waits inside a C library: no handler of Python's runs meanwhile.
    pause = ctypes.CDLL(None).sleep
    while True:
        pause(3_600)

async def thread_of_the_loop(message):
    say("publishing")
    await asyncio.to_thread(block)

async def blocks_in_c(message):
    say("publishing")
    block_in_c()

async def blocks_in_c_uninterrupted(message):
    # As where the signal comes just before the call: then nothing ends the call.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    say("publishing")
    block_in_c()

def plain_thread(message):
    threading.Thread(target=block).start()
    say("publishing")

class Base:
    async def publish(self, message):
        say("publishing")

class CloseBlocks(Base):
    def close(self):
        block()

class CloseBlocksInC(Base):
    def close(self):
        block_in_c()

class CloseSwallows(Base):
    async def close(self):
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                pass

class FailsAndCloseBlocks(CloseBlocks):
    async def publish(self, message):
        raise KeyError("odd")

class OpenWaits(Base):
    async def open(self):
        say("opening")
        await asyncio.sleep(3_600)

class OpenSwallows(Base):
    async def open(self):
        say("opening")
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                pass

class OpenBlocks(Base):
    def open(self):
        say("opening")
        block()

class OpenGoesOn(Base):
    async def open(self):
        say("opening")
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            pass

class PrintsMuch(Base):
    async def publish(self, message):
        print("x" * 100)

close_blocks, close_blocks_in_c, close_swallows = CloseBlocks(), CloseBlocksInC(), CloseSwallows()
fails_and_close_blocks, prints_much = FailsAndCloseBlocks(), PrintsMuch()
open_waits, open_swallows, open_blocks, open_goes_on = OpenWaits(), OpenSwallows(), OpenBlocks(), OpenGoesOn()
"""


@pytest.fixture(autouse=True)
def stuck(folder: Path) -> None:
    folder.joinpath("stuck.py").write_text(STUCK)


def start(program: Program, publisher: str, *arguments: str, until: str = "publishing") -> subprocess.Popen[str]:
    process = program.start("dispatch", "--publisher", f"stuck:{publisher}", "--grace", f"{GRACE}s", *arguments)
    read_until(process.stdout, until)
    return process


def timed(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[Result, float]:
    """Send a signal; return how the process ended, and after how many seconds."""
    began = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=30)
    seconds = time.monotonic() - began
    return finish(process), seconds


def until_done(url: str) -> None:
    deadline = time.monotonic() + 20
    while set(statuses(url).values()) != {"done"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("publisher", ["thread_of_the_loop", "blocks_in_c", "blocks_in_c_uninterrupted"])
def test_a_publish_that_never_ends(configured: Program, store: str, publisher: str) -> None:
    enqueue(store)
    result, seconds = timed(start(configured, publisher))
    assert result.code == 1
    assert seconds < PROMISE
    assert "Traceback" not in result.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("publisher", ["close_blocks", "close_blocks_in_c", "close_swallows", "plain_thread"])
def test_what_is_left_behind_after_everything_was_delivered(
    configured: Program, store: str, publisher: str, number: signal.Signals
) -> None:
    enqueue(store)
    process = start(configured, publisher)
    until_done(store)
    result, seconds = timed(process, number)
    assert result.code == 0  # every message was finished
    assert seconds < PROMISE
    assert "drained=true" in result.err
    assert "Traceback" not in result.err


def test_a_second_signal_ends_a_close_that_blocks(configured: Program, store: str) -> None:
    enqueue(store)
    process = start(configured, "close_blocks", "--grace", "1h", "--publish-timeout", "50s")
    until_done(store)
    process.send_signal(signal.SIGTERM)
    read_until(process.stderr, "message=stopped")
    result, seconds = timed(process)
    assert result.code == 0
    assert seconds < 1


def test_a_close_that_blocks_where_nobody_sent_a_signal(configured: Program, store: str) -> None:
    enqueue(store)
    once = ("dispatch", "--once", "--grace", "500ms")
    assert configured.run(*once, "--publisher", "stuck:close_blocks").code == 0
    enqueue(store)
    failing = ("--publisher", "stuck:fails_and_close_blocks", "--on-unexpected", "stop")
    assert configured.run(*once, *failing).code == 5
    assert configured.run("dispatch", "--grace", "500ms", *failing).code == 5


@pytest.mark.parametrize("publisher", ["open_waits", "open_swallows", "open_blocks", "open_goes_on"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_open_that_hangs(configured: Program, publisher: str, number: signal.Signals) -> None:
    result, seconds = timed(start(configured, publisher, until="opening"), number)
    assert result.code == 0  # nothing was in flight
    assert seconds < PROMISE
    assert "Traceback" not in result.err
    assert "RuntimeError" not in result.err


def test_an_open_that_hangs_is_not_given_the_grace_time(configured: Program) -> None:
    process = start(configured, "open_blocks", "--grace", "1h", until="opening")
    result, seconds = timed(process)
    assert result.code == 0
    assert seconds < 3


def test_what_was_printed_is_not_lost(configured: Program, store: str) -> None:
    enqueue(store, 50)
    result = configured.run("dispatch", "--once", "--publisher", "stuck:prints_much")
    assert (result.code, result.out) == (0, 50 * ("x" * 100 + "\n"))


def test_a_server_that_is_gone_while_nothing_is_in_flight(program: Program) -> None:
    with running_server(pg18_bin_dir()) as server:
        with psycopg.connect(server.url) as connection:
            Outbox().migrate(connection)
        process = program.start("dispatch", "--to", "stdout:", "--store", server.url, "--grace", "20s")
        read_until(process.stderr, "message=dispatching")
        with psycopg.connect(server.url, autocommit=True) as connection:
            idle = "EXISTS (SELECT 1 FROM pg_stat_activity WHERE starts_with(query, 'LISTEN') AND state = 'idle')"
            wait_for(connection, idle)  # everything is set up by then
        server.stop("immediate")
        read_until(process.stderr, "trying again")
        assert process.poll() is None
        result, seconds = timed(process)
        assert result.code == 0
        assert seconds < 5
        assert "drained=true" in result.err
