"""The whole demonstration, as a user sees it, and the same one sabotaged."""

from __future__ import annotations

import json

from fencepost.demo.sabotage import NO_DEDUPE, NO_FENCE, TWO_TRANSACTIONS, VARIABLE
from tests.demo.playing import playing


def test_every_line_is_true_and_nothing_is_left_behind() -> None:
    with playing("demo", "", "json") as play:
        status, output = play.finish_watching_its_server()

        result = json.loads(output)
        assert {line["name"]: line["holds"] for line in result["lines"]} == dict.fromkeys(
            ["delivered", "rolled_back", "payloads", "repeats", "taken_over", "stale_writes", "nothing_left"], True
        )
        assert result["holds"] is True
        assert status == 0
        assert {"killed", "frozen"} <= {repeat["cause"] for repeat in result["repeats"]}
        assert play.had_server()
        assert play.leftovers() == []


def test_the_verdict_says_no_when_it_is_sabotaged(database18: str) -> None:
    sabotage = ",".join([NO_DEDUPE, NO_FENCE, TWO_TRANSACTIONS])
    with playing("demo", database18, "terminal", **{VARIABLE: sabotage}) as play:
        status, output = play.finish()

        assert status == 1, output
        lines = [line.strip() for line in output.splitlines()]
        assert {line for line in lines if line.startswith("✗")} == {
            "✗  Every committed order was delivered",  # what was rolled back came along
            "✗  Nothing that was rolled back was ever sent",
            "✗  Every repeat has a cause, and the receiver dropped it",
            "✗  The late writes of worker-2 were refused",
        }
        assert len([line for line in lines if line.startswith("✓")]) == 3
        assert play.leftovers() == []
