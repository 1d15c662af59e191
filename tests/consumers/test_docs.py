"""The code in docs/consumers.md runs, and every module of a broker stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost import Acceptance, SequenceGap
from tests.consumers.conftest import Effects, message

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "consumers.md").read_text(encoding="utf-8")


@pytest.fixture
def page(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the page's blocks from top to bottom, as a reader would."""
    monkeypatch.setenv("DATABASE_URL", effects.url)
    effects.conn.execute("CREATE TABLE IF NOT EXISTS invoice (message_id text NOT NULL, order_id int NOT NULL)")
    effects.conn.execute("DELETE FROM invoice")
    names: dict[str, Any] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)  # noqa: S102 - our own page
    return names


def invoices(effects: Effects) -> list[Any]:
    return effects.conn.execute("SELECT message_id, order_id FROM invoice ORDER BY 1").fetchall()


def test_the_handler_and_the_block(page: dict[str, Any], effects: Effects) -> None:
    found = [page["bill"](message("m", b'{"id": 42}')) for _ in range(2)]
    assert found == [Acceptance.ACCEPTED, Acceptance.REPEAT]
    for _ in range(2):
        page["take"](message("n"))
    assert invoices(effects) == [("m", 42), ("n", 0)]


def test_the_sequence(page: dict[str, Any]) -> None:
    handle = page["ordered"].handler(lambda *_: None)
    assert handle(message("a", Key="k", Key_Sequence="1"))
    with pytest.raises(SequenceGap):
        handle(message("c", Key="k", Key_Sequence="3"))


def test_each_broker_has_a_line_and_each_example_too() -> None:
    folder = ROOT / "src" / "fencepost" / "consumers"
    shared = {"__init__", "cloudevent", "consumer", "incoming", "received"}
    brokers = {path.stem for path in folder.glob("*.py")} - shared
    assert set(re.findall(r"^\| `(\w+)\.(?:incoming|received)\(", PAGE, re.MULTILINE)) == brokers
    listed = set(re.findall(r"\[(\w+\.py)\]\(\1\)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "examples").glob("*.py")}
