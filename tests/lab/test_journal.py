"""Long runs are broken off: what they had found is kept, whole lines of it, and they go on behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from lab.conformance import __main__ as conformance
from lab.conformance.fake import FakeStore
from lab.journal import Journal
from lab.simulator.__main__ import main as simulate


def test_a_line_that_was_broken_off_is_dropped_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.write_text('{"n": 1}\n{"n": 2}\n{"n": ', encoding="utf-8")
    journal = Journal(file)
    assert journal.found == [{"n": 1}, {"n": 2}]
    journal.add({"n": 3})
    assert Journal(file).found == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("text", ["", "\n", '{"n": '])
def test_a_file_without_a_whole_line_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "journal"
    file.write_text(text, encoding="utf-8")
    journal = Journal(file)
    assert journal.found == []
    journal.add({"n": 1})
    assert Journal(file).found == [{"n": 1}]


def test_without_a_file_nothing_is_kept() -> None:
    journal = Journal(None)
    journal.add({"n": 1})
    assert journal.found == []


def test_histories_go_on_behind_the_slices_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "SLICE", 3)
    into = tmp_path / "reports"
    with closing(FakeStore()) as fake:
        first = conformance.in_slices([fake], 7, 6, into)
        assert capsys.readouterr().err.count("histories,") == 2
        again = conformance.in_slices([fake], 7, 9, into)
    assert capsys.readouterr().err.count("histories,") == 1  # one slice more, and the two of before not again
    assert (first.histories, again.histories) == (6, 9)
    assert again.counts > first.counts
    assert len(Journal(into).found) == 3


def test_schedules_go_on_behind_the_slices_that_were_kept(tmp_path: Path) -> None:
    into = tmp_path / "figures"
    command = ["--of", "messages", "--seed", "7", "--schedules", "3", "--into", str(into)]
    assert simulate(command) == 0
    kept = into.read_text(encoding="utf-8")
    assert simulate(command) == 0
    assert into.read_text(encoding="utf-8") == kept
