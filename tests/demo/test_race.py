"""The race: the broken dispatcher sends twice, the lease does not, and a late write is refused."""

from __future__ import annotations

import io
import json

import psycopg
import pytest
from rich.console import Console

from fencepost.demo import run_race
from fencepost.demo.turns import OutOfOrder, Turns
from tests.demo.playing import playing


def test_every_line_is_true_and_nothing_is_left_behind() -> None:
    with playing("race", "", "json") as play:
        status, output = play.finish_watching_its_server()

        result = json.loads(output)
        assert [line["name"] for line in result["lines"] if line["holds"]] == [
            "usual_sent_twice",
            "leased_sent_once",
            "late_write_refused",
            "repeat_can_be_told",
        ]
        assert (status, result["holds"]) == (0, True)
        assert {moment["scene"] for moment in result["timeline"]} == {"usual", "leased", "paused"}
        assert play.had_server()
        assert play.leftovers() == []


def test_the_order_of_steps_is_the_same_each_time(database18: str) -> None:
    first, second = (_timeline(database18) for _ in range(2))

    assert first == second
    assert [(who, did) for scene, who, did in first if scene == "usual" and "publishes" in did] == [
        ("A", "publishes message 1"),
        ("B", "publishes message 1"),
    ]


def test_people_see_both_workers_side_by_side(database18: str) -> None:
    console = Console(file=io.StringIO(), width=100)

    assert run_race(database18, console=console) == 0

    shown = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "worker A" in shown
    assert "worker B" in shown
    assert "mark_done, token 1: refused, lease lost" in shown
    with psycopg.connect(database18) as connection:
        assert connection.execute("SELECT count(*) FROM fencepost_demo.sent").fetchone() == (5,)


def test_a_step_whose_turn_cannot_come_is_an_error() -> None:
    turns = Turns([("A", "select")])
    turns.give_up()

    with pytest.raises(OutOfOrder, match="B waits for its turn to commit"), turns.take("B", "commit"):
        pass


def _timeline(url: str) -> list[tuple[str, str, str]]:
    console = Console(file=io.StringIO(), width=100)
    assert run_race(url, console=console, as_json=True) == 0
    result = json.loads(console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO
    return [(moment["scene"], moment["worker"], moment["did"]) for moment in result["timeline"]]
