"""The table of mutants fits the sources, a few of them are noticed, and the runner can tell one that is not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from lab.mutants.__main__ import Trial, summary
from lab.mutants.mutant import Misplaced, Mutant, mutated
from lab.mutants.record import Record
from lab.mutants.table import EQUIVALENT, MUTANTS
from lab.mutants.trial import Verdict, verdict_of
from lab.mutants.warm import ROOT, Warm

from fencepost.embedded import PostgresServer
from tests.runtime.box import wait_until

BY_NAME = {each.name: each for each in MUTANTS}
HARMLESS = Mutant(
    "harmless",
    "nothing",
    "core/lease.py",
    "return frozenset(asked)",
    "return frozenset( asked)",
    "core/test_lease",
)


def test_each_mutant_changes_exactly_one_place_and_names_tests_that_are_there() -> None:
    assert len(MUTANTS) >= 100
    assert [name for name, count in Counter(each.name for each in MUTANTS).items() if count > 1] == []
    for each in MUTANTS:
        assert mutated(each, ROOT / "src") != (ROOT / "src" / "fencepost" / each.file).read_text(encoding="utf-8")
        assert each.test_files
        assert [file for file in each.test_files if not (ROOT / file).is_file()] == []


def test_what_is_said_to_be_beyond_notice_is_there_and_little() -> None:
    assert EQUIVALENT.keys() <= BY_NAME.keys()
    assert len(EQUIVALENT) <= len(MUTANTS) * 0.02


@pytest.mark.parametrize("before", ["nowhere to be found", "return"])
def test_a_mutant_whose_text_is_not_there_once_fails_loudly(before: str) -> None:
    with pytest.raises(Misplaced, match=r"harmless: its text occurs \d+ times in core/lease.py"):
        mutated(replace(HARMLESS, before=before), ROOT / "src")


QUICK = {
    "spent-one-late": "core/test_outcome::test_the_last_attempt_ends_in_exhausted",
    "retry-refunds": "store/test_fence::test_a_retry_is_due_after_its_delay_and_keeps_the_attempt",
    "permanent-retried": "runtime/test_outcomes::test_a_permanent_failure_is_dead_at_once",
}
"""Of each kind one, with the very test that notices it: core, SQL, runtime."""


@pytest.mark.timeout(300)
def test_a_few_are_noticed(postgres18: PostgresServer) -> None:
    tried = [replace(BY_NAME[name], tests=test) for name, test in QUICK.items()]
    verdicts, _ = Trial(is_quiet=True).of(tried, postgres18.directory, confirms=False)
    assert [(each.mutant.name, each.state) for each in verdicts] == [(name, "killed") for name in QUICK]


def test_a_harmless_one_survives_and_one_that_does_not_run_is_nonsense() -> None:
    assert verdict_of(HARMLESS, 0, "4 passed in 0.1s").state == "survived"
    failed = "FAILED tests/core/test_lease.py::test_x[pg18] - "
    assert verdict_of(HARMLESS, 1, f"{failed}assert 1 == 2") == Verdict(
        HARMLESS, "killed", "tests/core/test_lease.py::test_x[pg18]", "assert 1 == 2"
    )
    assert verdict_of(HARMLESS, 1, f"{failed}psycopg.errors.SyntaxError: syntax error at end").state == "nonsense"
    assert verdict_of(HARMLESS, 2, "1 error during collection").state == "nonsense"


def test_a_test_that_hangs_is_no_test_that_noticed() -> None:
    hung = "FAILED tests/core/test_lease.py::test_x - Failed: Timeout (>60.0s) from pytest-timeout."
    assert verdict_of(HARMLESS, 1, hung).state == "hung"
    assert verdict_of(HARMLESS, None, "").state == "hung"


def test_who_is_told_to_end_waits_for_no_test_and_leaves_none_behind(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    (tmp_path / "test_hangs.py").write_text(
        "import os, pathlib, threading\n"
        f"def test_hangs():\n    pathlib.Path({str(mark)!r}).write_text(str(os.getpid()) + '.')\n"
        "    threading.Event().wait()\n"
    )
    warm = Warm([tmp_path], dict(os.environ), tmp_path / "output")
    with contextlib.closing(warm), ThreadPoolExecutor() as pool:
        arguments = ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "test_hangs.py")]
        running = pool.submit(warm.run, arguments, {}, 60.0)
        wait_until(lambda: mark.exists() and mark.read_text().endswith("."))
        warm.give_up()
        code, _ = running.result()
        assert code == -signal.SIGKILL
        with pytest.raises(RuntimeError, match="given up"):
            warm.run(arguments, {}, 60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text().rstrip(".")), 0)


def test_what_was_decided_is_not_tried_again_until_its_text_changes(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    killed, survivor, explained, changed = (replace(HARMLESS, name=name) for name in ("k", "s", "e", "c"))
    explained = replace(explained, equivalent="why")
    by = "tests/core/test_lease.py::test_x"
    record.keep(Verdict(killed, "hung", by))
    for verdict in (
        Verdict(killed, "killed", by, "assert", 1.0),
        Verdict(survivor, "survived"),
        Verdict(explained, "survived"),
        Verdict(changed, "killed", by),
    ):
        record.keep(verdict)
    changed = replace(changed, after="return frozenset(  asked)")
    decided = record.decided([killed, survivor, explained, changed])
    assert decided == [Verdict(killed, "killed", by, "assert", 1.0), Verdict(explained, "survived")]
    assert record.noticed_before(changed) == by
    assert record.noticed_before(survivor) == record.noticed_before(HARMLESS) == ""


def test_the_verdict_asks_for_a_reason_of_each_survivor_and_for_enough_that_are_noticed() -> None:
    killed = [Verdict(replace(HARMLESS, name=str(n)), "killed", "a test") for n in range(98)]
    explained = [Verdict(replace(HARMLESS, name=f"e{n}", equivalent="why"), "survived") for n in range(3)]
    assert summary(killed + explained[:2], "")["ok"]
    assert not summary(killed + explained, "")["ok"]  # 98 of 101
    assert not summary([*killed, Verdict(HARMLESS, "survived")], "")["ok"]
    assert not summary([*killed, Verdict(explained[0].mutant, "killed", "a test")], "")["ok"]
    assert not summary(killed, "test_x fails by itself")["ok"]
    assert not summary([*killed, Verdict(HARMLESS, "hung", "a test")], "")["ok"]
    assert not summary([*killed, Verdict(HARMLESS, "doubtful", "a test")], "")["ok"]
