"""The section ``destinations`` end to end, and the loops that it holds them against; no speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fencepost.bench import contender
from fencepost.bench.bench import Bench
from fencepost.bench.clients import LOOPS, target_of
from fencepost.bench.contender import Assignment
from fencepost.bench.sections import destinations
from fencepost.bench.sections.destinations import Found, Round
from fencepost.bench.suite import REPORT_FILE, Plan
from fencepost.cli.app import run
from fencepost.errors import ConfigError, FencepostError
from fencepost.publishers.registry import BUILT_IN
from tests.bench.brokers import BROKERS, running

SECRET = "hunter2-is-secret"  # noqa: S105 - made up


def test_two_destinations_are_measured_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, names = tmp_path / "report", ["nats", "redis"]
    with running(names, tmp_path, pytest.fail) as urls:
        given = [part for name, url in urls.items() for part in ("--destination", f"{name}={url}")]
        code = run(
            ["bench", "report", "--only", "destinations", "--scale", "0.001", "--out", str(out), "--json", *given]
        )
    found = json.loads(capsys.readouterr().out)
    (section,) = found["sections"]
    assert (section["failure"], section["notes"]) == ("", [])
    assert [target["name"].partition(":")[0] for target in section["targets"]] == names
    assert all(target["measured"] > 0 for target in section["targets"])
    assert code == (0 if found["held"] else 1)
    whole, rounds = section["tables"]
    assert [row[0] for row in whole["rows"]] == names
    assert [row[0] for row in rounds["rows"]] == [f"{name} {turn}" for name in names for turn in (1, 2)]
    for table in section["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["headers"])}
        assert all(float(cell.replace(",", "")) > 0 for row in table["rows"] for cell in row[1:4])
    assert all(f"--destination {name}=" in found["command"] for name in names)
    assert "nats-py JetStream publish_async" in (out / REPORT_FILE).read_text("utf-8")
    ET.parse(out / "destinations.svg")  # noqa: S314 - our own file


def test_without_a_destination_the_section_says_how_to_give_one() -> None:
    said: list[str] = []
    section = destinations.measure(Bench("", Path(), said.append))
    assert (section.tables, section.targets, section.failure) == ((), (), "")
    assert "--destination" in section.notes[0]
    assert "left out" in said[0]


def test_a_destination_that_fails_leaves_the_others_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_bench: Bench, name: str, *_: object) -> Round:
        if name == "down":
            raise FencepostError("fencepost.bench.clients failed: Traceback\n  File …\nOSError: nobody there")
        return Round(client=2_000.0, shipped=1_500.0, ceiling=10_000.0)

    monkeypatch.setattr(destinations, "_round", measured)
    given = [("down", "nats://127.0.0.1:1"), ("up", "redis://127.0.0.1:1")]
    section = destinations.measure(Bench("", Path(), lambda _: None, destinations=given))
    assert section.notes == ("down could not be measured: OSError: nobody there",)
    assert [target.held for target in section.targets] == [False, True]
    assert section.tables[0].rows == (
        ("down", "-", "-", "-", "-", "failed"),
        ("up", "2,000", "1,500", "10,000", "0.75", "held"),
    )
    assert section.charts[0].places == ("up",)


def test_the_part_is_of_whichever_is_lower() -> None:
    assert Round(client=1_000.0, shipped=600.0, ceiling=2_000.0).part == 0.6
    assert Round(client=9_000.0, shipped=600.0, ceiling=2_000.0).part == 0.3
    rounds = [Round(1_000.0, shipped, 2_000.0) for shipped in (100.0, 700.0, 500.0)]
    assert Found("a", "", 10, rounds).part == 0.5


def test_every_destination_has_a_loop_and_a_broker() -> None:
    secured = {"amqps", "mqtts", "rediss"}  # the loops know no TLS settings
    assert set(LOOPS) == set(BUILT_IN) - secured - {"stdout"}
    assert len(BROKERS) == len(set(BUILT_IN.values())) - 1


@pytest.mark.parametrize(
    "url",
    [
        "stdout:",
        "nats:4222",
        "amqps://127.0.0.1",
        "kafka://127.0.0.1?compression=zstd",
        "redis://127.0.0.1?stream={aggregate_id}",
        f"https://user:{SECRET}@127.0.0.1?secret_env=X",
    ],
)
def test_what_a_loop_cannot_heed_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        target_of(url, 1_000)
    assert run(["bench", "report", "--only", "destinations", "--destination", f"x={url}"]) == 2
    assert SECRET not in capsys.readouterr().err


def test_no_secret_is_shown() -> None:
    url = f"nats://user:{SECRET}@127.0.0.1:1"
    assert SECRET not in Plan(destinations=[("a", url)]).command
    assert SECRET not in repr(target_of(url, 1_000))
    with pytest.raises(FencepostError, match=r"fencepost\.bench\.clients failed") as caught:
        contender.run("fencepost.bench.clients", Assignment("", 1, destination=f"amqp://u:{SECRET}@127.0.0.1:1"))
    assert SECRET not in str(caught.value)
