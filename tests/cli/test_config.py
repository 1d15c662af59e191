"""``config``: where each value comes from, and whether the settings work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.cli.settings import SETTINGS
from tests.cli.program import Result

Call = Callable[..., Result]
STORE = "postgresql://app:s3cret@db/shop"


@pytest.fixture
def mixed(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings from everywhere; after `call`, which clears the environment."""
    folder.joinpath("fencepost.toml").write_text(
        'batch = 7\nlease = "30s"\n[routes]\n"*" = "https://u:s3cret@h/p"\n'
    )
    monkeypatch.setenv("FENCEPOST_STORE", STORE)
    monkeypatch.setenv("FENCEPOST_LEASE", "40s")


@pytest.mark.usefixtures("mixed")
def test_show_says_where_each_value_comes_from(call: Call) -> None:
    result = call("config", "show", "--queue", "a", "--queue", "b", "--no-notify")
    assert result.code == 0
    rows = {line.split()[0]: line for line in result.out.splitlines()[1:]}
    assert list(rows) == [each.name for each in SETTINGS]

    def row(name: str) -> str:
        return " ".join(rows[name].split())

    assert row("batch") == "batch 7 file fencepost.toml"
    assert row("lease") == "lease 40s environment FENCEPOST_LEASE"
    assert row("queues") == "queues a, b flag --queue"
    assert row("notify") == "notify false flag --notify"
    assert row("grace") == "grace 20s default"
    assert row("store") == "store postgresql://app:***@db/shop environment FENCEPOST_STORE"
    assert row("routes") == "routes *=https://***@h/p file fencepost.toml"
    assert "s3cret" not in result.out


@pytest.mark.usefixtures("mixed")
def test_show_as_json(call: Call) -> None:
    found = call("config", "show", "--json", "--table", "out").json
    assert found["batch"] == {"value": "7", "source": "file", "place": "fencepost.toml"}
    assert found["table"] == {"value": "out", "source": "flag", "place": "--table"}
    assert found["grace"] == {"value": "20s", "source": "default", "place": None}
    assert found["store"]["value"] == "postgresql://app:***@db/shop"


def test_check_of_what_would_work(call: Call) -> None:
    result = call("config", "check", "--route", "*=stdout:", store=STORE)
    assert result == Result(0, "the settings are in order\n", "")
    assert call("config", "check", "--route", "*=stdout:", "--json", store=STORE).json == {"problems": []}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), ["store: no database is given", "routes: nothing says where messages go"]),
        (("--route", "*=pigeon://h/t", "--store", STORE), ["no publisher for 'pigeon'"]),
        (("--route", "*=stdout:", "--store", STORE, "--batch", "0"), ["batch (flag --batch): 0 must lie"]),
        (("--lease", "x", "--grace", "y"), ["lease (flag --lease)", "grace (flag --grace)"]),
        (("--route", "*=python:nowhere:at_all", "--store", STORE), ["publisher nowhere:at_all cannot be loaded"]),
        (("--route", "*=python:json:nothing", "--store", STORE), ["publisher json:nothing cannot be loaded"]),
        (("--route", "*=python:json:JSONEncoder", "--store", STORE), ["is a class; pass an instance"]),
    ],
)
def test_check_names_each_problem(call: Call, arguments: tuple[str, ...], says: list[str]) -> None:
    result = call("config", "check", *arguments)
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert len(lines) == len(says)
    assert all(text in line for text, line in zip(says, lines, strict=True))
    assert call("config", "check", "--json", *arguments).json == {"problems": lines}


def test_a_publisher_is_found_in_the_folder(call: Call, folder: Path) -> None:
    folder.joinpath("shop_events_of_this_test.py").write_text(
        "def publish(message): ...\nclass Deep:\n    f = publish\n"
    )
    for name in ("publish", "Deep.f"):
        target = f"*=python:shop_events_of_this_test:{name}"
        assert call("config", "check", "--route", target, store=STORE).code == 0


def test_a_module_that_fails_is_one_line(call: Call, folder: Path) -> None:
    folder.joinpath("broken_of_this_test.py").write_text("1 / 0\n")
    result = call("config", "check", "--route", "*=python:broken_of_this_test:x", store=STORE)
    assert "publisher broken_of_this_test:x cannot be loaded: ZeroDivisionError: division by zero" in result.out
