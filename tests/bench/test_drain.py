"""``bench drain`` in a tiny size: that it measures and reports, not how fast anything is."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from fencepost.bench import contender, drain
from fencepost.bench.contender import Assignment
from fencepost.bench.drain import BARE, SHIPPED, Report, measure, per_message
from fencepost.bench.figures import Target
from fencepost.bench.trial import Run, Trial
from fencepost.cli.app import run
from fencepost.errors import FencepostError


def made(contender_name: str, seconds: float, **counts: int) -> Run:
    figures = {
        "wal_bytes": 40_000,
        "statements": 8,
        "updates": 200,
        "hot_updates": 100,
        "dead_tuples": 100,
    } | counts
    return Run(contender_name, 100, seconds, 0.1, **figures)


def report(*shipped: Run) -> Report:
    runs = [each for one in shipped for each in (made(BARE, 1.0), one)]
    return Report("PostgreSQL 18", tuple(runs))


def test_a_run_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["bench", "drain", "--messages", "300", "--pairs", "1", "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [each["contender"] for each in found["runs"]] == [BARE, SHIPPED]
    for each in found["runs"]:
        assert each["messages"] == 300
        assert each["seconds"] > 0
        assert each["wal_bytes"] > 0
        # A claim and a finalize for each message; the claim at least is heap-only.
        assert each["updates"] == 600
        assert each["hot_updates"] >= 300
    # Four commits of three batches and of the claim that finds nothing: BEGIN, the statement, COMMIT.
    assert found["runs"][0]["statements"] == 3 * 7
    # A claim and a finalize for each of three batches, each its own transaction, and what a start takes.
    assert found["runs"][1]["statements"] > 2 * 3
    assert code == (0 if all(target["held"] for target in found["targets"]) else 1)
    assert "pg_stat_statements" in found["method"]


def test_the_verdict_is_printed_and_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"good": report(made(SHIPPED, 1.05)), "bad": report(made(SHIPPED, 3.0, wal_bytes=50_000))}
    for name, code in (("good", 0), ("bad", 1)):
        monkeypatch.setattr("fencepost.bench.drain.measure", lambda *_, name=name: results[name])
        assert run(["bench", "drain"]) == code
    printed = capsys.readouterr().out
    assert "held: speed, as a part of the bare loop's: 0.952, at least 0.9" in printed
    assert "MISSED: speed, as a part of the bare loop's: 0.333, at least 0.9" in printed
    assert "MISSED: WAL bytes per message: 500, at most 450" in printed
    assert "held: statements per message: 0.08, at most 0.1" in printed


@pytest.mark.parametrize(
    ("arguments", "expected"), [((), (20, 5)), (("--messages", "7"), (7, 5)), (("--pairs", "2"), (20, 2))]
)
def test_the_size_comes_from_flags_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: tuple[int, int]
) -> None:
    asked: list[tuple[int, int]] = []

    def measured(messages: int, pairs: int, _advance: object) -> Report:
        asked.append((messages, pairs))
        return report(made(SHIPPED, 1.05))

    monkeypatch.setattr("fencepost.bench.drain.measure", measured)
    monkeypatch.setenv("FENCEPOST_BENCH_MESSAGES", "20")
    monkeypatch.setenv("FENCEPOST_BENCH_PAIRS", "5")
    assert run(["bench", "drain", *arguments]) == 0
    assert asked == [expected]


@pytest.mark.parametrize(
    ("flag", "number"),
    [(flag, number) for flag in ("--messages", "--pairs") for number in ("0", "-1", "99999999999999999999")],
)
def test_a_size_out_of_range(flag: str, number: str) -> None:
    assert run(["bench", "drain", flag, number]) == 2


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    assert report(made(SHIPPED, 1.0), made(SHIPPED, 4.0), made(SHIPPED, 2.0)).ratio == 0.5
    assert report(made(SHIPPED, 1.0)).median(SHIPPED, per_message("wal_bytes")) == 400


def test_a_target_at_its_limit_is_held() -> None:
    assert Target("x", 0.5, 0.5, at_least=True).held
    assert Target("x", 450, 450, at_least=False).held
    assert not Target("x", 450.1, 450, at_least=False).held


def test_a_contender_that_fails_is_an_error() -> None:
    with pytest.raises(FencepostError, match=r"fencepost\.bench\.bare failed: (.|\n)*refused"):
        contender.run("fencepost.bench.bare", Assignment("postgresql://127.0.0.1:1/x", 1))


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_url: str, trial: Trial, _messages: int) -> Run:
        return made(trial.name, 1.0)

    monkeypatch.setattr(drain, "running_server", lambda: nullcontext("address"))
    monkeypatch.setattr(drain, "major_version", lambda _: "PostgreSQL 18")
    monkeypatch.setattr(drain, "measured", measured)
    told: list[str] = []
    measure(100, 2, told.append)
    assert told == [f"pair {pair} of 2: {name}" for pair in (1, 2) for name in (BARE, SHIPPED)]
