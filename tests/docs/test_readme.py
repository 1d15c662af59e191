"""What the README says is true: its lines run, its picture is the table, its files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fencepost.core.states import TRANSITIONS
from fencepost.store.schema import EXPECTED_COLUMNS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_picture_of_the_states_is_the_table() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+): (.+)$", README, flags=re.MULTILINE))
    table = {(str(state), str(step.to), str(event)) for (state, event), step in TRANSITIONS.items()}
    assert drawn == table


def test_the_lines_of_real_use_work_when_pasted() -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    with tempfile.TemporaryDirectory(prefix="fencepost-readme-") as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=folder,
            env=os.environ | {"FENCEPOST_EMBEDDED_DIR": f"{folder}/pg", "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "order.created {'id': 42} attempt 1 token 1\ndelivered: 1\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_points_to_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [target for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text) if "://" not in target]
    missing = [target for target in links if not (document.parent / target).exists()]
    named = re.findall(
        r"`((?:tests|docs|src|runtime|store|core|drivers|publishers)/[\w./-]+\.(?:py|md|sql))", text
    )
    roots = (ROOT, ROOT / "src" / "fencepost")
    missing += [name for name in named if not any((root / name).exists() for root in roots)]
    assert missing == []


def test_the_table_contract_names_every_column() -> None:
    text = (ROOT / "docs" / "table.md").read_text(encoding="utf-8")
    named = {
        name
        for row in re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(EXPECTED_COLUMNS)
