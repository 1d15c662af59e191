"""However the demonstration ends, nothing of it stays: no process, no server, no directory."""

from __future__ import annotations

import signal

import pytest

from fencepost.embedded.processes import wait_until
from tests.demo.playing import playing


@pytest.mark.parametrize(
    ("number", "during", "statuses"),
    [
        (signal.SIGINT, "a receiver and three workers run", {-signal.SIGINT, 130}),
        (signal.SIGTERM, "the shop is open", {128 + signal.SIGTERM}),
        # The worst case: nobody is left to clean up, and a frozen worker cannot notice it.
        (signal.SIGKILL, "SIGSTOP for", {-signal.SIGKILL}),
    ],
    ids=["ctrl-c", "terminated", "killed while a worker is frozen"],
)
def test_nothing_stays(number: signal.Signals, during: str, statuses: set[int]) -> None:
    with playing("demo", "", "text") as play:
        play.read_until(during)
        assert play.had_server()
        assert play.leftovers() != []

        play.process.send_signal(number)
        status, output = play.finish()

        assert status in statuses, output
        assert wait_until(lambda: play.leftovers() == [], 30), play.leftovers()


def test_a_store_that_does_not_answer_is_said_at_once() -> None:
    with playing("demo", "postgresql://nobody@127.0.0.1:1/nothing", "text") as play:
        status, output = play.finish()

        assert status == 1
        assert "Connection refused" in output
        assert play.leftovers() == []
