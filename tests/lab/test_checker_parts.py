"""The pure parts of the checker: what it reads, its stretches of time, and how it names causes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.checker import causes
from lab.checker.__main__ import main
from lab.checker.evidence import Clock, Evidence, Publish
from lab.checker.guarantees.delivery import i1, i6
from lab.checker.guarantees.duplicates import i15
from lab.checker.guarantees.fence import i7
from lab.checker.guarantees.inbox import i8
from lab.checker.guarantees.ledger import ledger
from lab.checker.guarantees.neighbours import i13
from lab.checker.guarantees.order import i4
from lab.checker.guarantees.takeover import i10
from lab.checker.guarantees.transactions import i14
from lab.checker.history import History, HistoryError, Line, parsed, read_lines
from lab.checker.intervals import clipped, common, longest, merged, without
from lab.checker.jobs import j4
from lab.checker.recording import Recorder
from lab.checker.tables import Attempt, Change, JobState, QueueChange, State, Tables
from lab.checker.transitions import BURY, CLAIM, REAP, RECLAIM, step_of
from lab.checker.verdict import judge

SECOND = 1_000_000_000


# --- the history -----------------------------------------------------------------------------------------------


def test_a_line_that_a_kill_has_cut_short_is_passed_over(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "w1")
    recorder.write("ready")
    recorder.close()
    with (tmp_path / "w1.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "pro')
    (line,) = read_lines(tmp_path)
    assert (line.process, line.kind) == ("w1", "ready")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"at": 1, "process": "w1", "kind": "publisch_start"}', "unknown kind 'publisch_start'"),
        ('{"at": 1, "process": "w1", "kind": "exit", "of": "w1"}', "exit without pid, code"),
        ('{"process": "w1", "kind": "ready"}', "ready without at"),
        ("[]", "w1.jsonl, line 1"),
        ("{", "w1.jsonl, line 1"),
    ],
)
def test_a_history_that_is_not_one_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "w1.jsonl").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(HistoryError, match=told):
        read_lines(tmp_path)


def fields_of(kind: str) -> dict[str, Any]:
    """Return a line that is all right."""
    digests = {"payload": "", "headers": ""}
    about = {"message_id": "m", "id": 1, "token": 1}
    fields: dict[str, dict[str, Any]] = {
        "campaign": CAMPAIGN,
        "clock": {"database": 1},
        "commit": {"message_ids": ["m"]},
        "accepted": {"message_id": "m", "token": 1, "payload": ""},
        "publish_start": {**about, **digests, "queue": "q", "attempt": 1, "owner": "w1"},
        "publish_end": {**about, "result": "delivered"},
        "sample": {"open": [], "asked": 1},
        "start": {"of": "w1", "pid": 1, "role": "worker"},
        "inbox": {"consumer": "c", "message_id": "m", "token": None, "result": "unknown"},
        "fault": {"fault_id": 1, "fault": "cut", "target": "w1"},
        "ready": {},
    }
    return {"at": 1, "process": "w1", "kind": kind, **fields[kind]}


@pytest.mark.parametrize(
    ("kind", "name", "value", "told"),
    [
        ("campaign", "lease", "abc", "campaign: lease is 'abc', not a number above 0"),
        ("campaign", "lease", None, "not a number above 0"),
        ("campaign", "lease", -5, "not a number above 0"),
        ("campaign", "publish_timeout", float("inf"), "publish_timeout is inf"),
        ("campaign", "max_attempts", 2.5, "not a whole number of at least 1"),
        ("campaign", "lanes", [1], "not an object of objects of limits or null"),
        ("campaign", "lanes", {"t": {"total": "x"}}, "not an object of objects of limits or null"),
        ("commit", "message_ids", None, "message_ids is None, not a list, each a text"),
        ("commit", "message_ids", "abc", "not a list"),
        ("commit", "message_ids", [[1]], "each a text"),
        ("accepted", "token", "1", "token is '1', not a whole number"),
        ("accepted", "token", True, "not a whole number"),
        ("accepted", "message_id", ["a"], "not a text"),
        ("publish_start", "id", None, "not a whole number"),
        ("publish_end", "result", "nonsense", "not one of delivered, retryable, defer"),
        ("publish_end", "result", ["delivered"], "not one of delivered"),
        ("sample", "asked", None, "not a whole number"),
        ("sample", "open", [{}], "each an object with application, state and in_state_for"),
        ("clock", "database", "x", "not a whole number"),
        ("start", "role", "nonsense", "not one of worker, job_worker"),
        ("start", "queues", 5, "not a list, each a text or null"),
        ("fault", "target", ["a"], "not a text"),
        ("ready", "at", float("inf"), "at is inf, not a whole number"),
        ("ready", "at", None, "not a whole number"),
        ("ready", "process", 5, "process is 5, not a text"),
    ],
)
def test_fields_of_another_type_are_refused(kind: str, name: str, value: object, told: str) -> None:
    assert parsed(fields_of(kind)).kind == kind
    with pytest.raises(HistoryError, match=re.escape(told)):
        parsed(fields_of(kind) | {name: value})


def test_a_line_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w1.jsonl").write_text("[" * 200_000 + "\n", encoding="utf-8")
    with pytest.raises(HistoryError, match=r"w1\.jsonl, line 1"):
        read_lines(tmp_path)


def test_a_history_has_one_campaign(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="0 campaign lines"):
        History([])
    assert main([str(tmp_path), "--database", "postgresql://nowhere"]) == 2


# --- time ------------------------------------------------------------------------------------------------------


def test_stretches_of_time() -> None:
    parts = merged([(5, 9), (0, 2), (1, 3), (4, 4)])
    assert parts == [(0, 3), (5, 9)]
    assert without(parts, [(2, 6), (8, 20)]) == [(0, 2), (6, 8)]
    assert without([(0, 10), (20, 30)], [(-5, 1), (9, 21)]) == [(1, 9), (21, 30)]
    assert common(parts, [(1, 6), (8, 8), (8, 12)]) == [(1, 3), (5, 6), (8, 9)]
    assert clipped([(0, 3), (5, 9), (10, 12)], (4, 10)) == [(5, 9)]
    assert longest(parts) == 4
    assert longest([]) == 0


def test_clocks_go_by_the_nearest_reading() -> None:
    clock = Clock([(1_000_000, 5 * SECOND), (61_000_000, 66 * SECOND)])  # a second was lost in between
    assert clock.mono(2_000_000) == 6 * SECOND
    assert clock.mono(60_000_000) == 65 * SECOND


# --- causes ----------------------------------------------------------------------------------------------------


CAMPAIGN = {"lease": 10, "publish_timeout": 2, "poll": 1, "grace": 5, "max_attempts": 3}


class Row:
    """A row's changes, put together by hand: second ``n`` of the database is second ``n`` of the machine."""

    def __init__(self) -> None:
        self.changes: list[Change[State]] = []
        self.state: State | None = None

    def becomes(self, second: float, **fields: Any) -> None:
        before = self.state
        base = before or State("m", "q", None, "auto", "pending", 0, 0, None, None, 0, None, 0, 0, None, None)
        self.state = State(**{name: fields.get(name, getattr(base, name)) for name in State.__slots__})
        at, number = round(second * 1e6), len(self.changes) + 1
        op = "INSERT" if before is None else "UPDATE"
        self.changes.append(Change(number, at, at, number, "", op, 1, before, self.state))

    def claimed(self, second: float, by: str) -> None:
        state = self.state
        assert state is not None
        reclaims = state.reclaims + (state.status == "processing")
        until = round((second + 10) * 1e6)
        attempt = {"attempts": state.attempts + 1, "token": state.token + 1, "reclaims": reclaims}
        self.becomes(second, status="processing", owner=by, lease_until=until, **attempt)


def line(second: float, process: str, kind: str, **fields: Any) -> Line:
    return parsed({"at": round(second * SECOND), "process": process, "kind": kind} | fields)


def published(token: int, process: str, start: float, end: float | None, result: str | None) -> list[Line]:
    about: dict[str, Any] = {"message_id": "m", "id": 1, "token": token}
    more = {"queue": "q", "attempt": token, "owner": process, "payload": "", "headers": ""}
    lines = [line(start, process, "publish_start", **about, **more)]
    return lines if end is None else [*lines, line(end, process, "publish_end", **about, result=result)]


def fault(name: str, target: str, begin: float, end: float | None = None) -> list[Line]:
    lines = [line(begin, "c", "fault", fault_id=1, fault=name, target=target)]
    return lines if end is None else [*lines, line(end, "c", "fault_end", fault_id=1)]


def cause(row: Row, *groups: list[Line]) -> str | None:
    """Why the first publish of a row was followed by the second."""
    clock = [line(0, "c", "clock", database=0), line(0, "c", "campaign", **CAMPAIGN)]
    evidence = Evidence(History([*clock, *(each for group in groups for each in group)]), Tables(row.changes))
    first, second = evidence.publishes
    return causes.Causes(evidence).of(first, second).cause


def taken_over(at: float = 12) -> Row:
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.claimed(at, "w2")
    return row


def given_back(**fields: Any) -> Row:
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.becomes(4, status="pending", lease_until=None, **fields)
    row.claimed(5, "w2")
    return row


AGAIN = published(2, "w2", 13, 14, "delivered")


@pytest.mark.parametrize(
    ("disturbance", "named"),
    [
        (fault("sigkill", "w1", 3), causes.KILLED),
        (fault("sigstop", "w1", 3, 20), causes.FROZEN),
        (fault("cut", "w1", 3), causes.CUT),
        (fault("cut", "all", 3), causes.CUT),
        (fault("lost_commit_answer", "w1", 3), causes.ANSWER_LOST),
        (fault("black_hole", "w1", 3, 9), causes.BLACK_HOLE),
        (fault("server_kill", "server", 3, 5), causes.SERVER_LOST),
        (fault("read_only", "server", 3, 15), causes.SERVER_LOST),
        (fault("sigterm", "w1", 1.5), causes.SHUTDOWN),
        (fault("failover_lossy", "server", 3, 5), causes.LOSSY_FAILOVER),
        ([line(4, "c", "starved", of="w1", since=3 * SECOND, seconds=0.7)], causes.STARVED),
        ([line(4, "c", "starved", of="w1", since=3 * SECOND, seconds=0.1)], None),
        (fault("sigkill", "w2", 3), None),
        (fault("sigkill", "w1", 12.5), None),
        (fault("sigstop", "w1", -20, -15), None),
        ([], None),
    ],
)
def test_a_takeover_is_named_after_what_was_done_to_the_worker(disturbance: list[Line], named: str | None) -> None:
    assert cause(taken_over(), published(1, "w1", 2, 2.5, "delivered"), AGAIN, disturbance) == named


def test_a_lease_that_runs_out_under_a_publish_is_a_cause_unless_its_process_had_gone() -> None:
    late = published(1, "w1", 2, 11.5, "delivered")
    assert cause(taken_over(), late, AGAIN) == causes.RAN_OUT
    endless = published(1, "w1", 2, None, None)
    assert cause(taken_over(), endless, AGAIN) == causes.RAN_OUT
    gone = [line(3, "c", "exit", of="w1", pid=1, code=1)]
    assert cause(taken_over(), endless, AGAIN, gone) is None


def test_a_publish_that_begins_after_its_lease_is_explained_by_what_held_its_worker_up_only() -> None:
    late = published(1, "w1", 12.5, 12.7, "cancelled")
    assert cause(taken_over(), late, AGAIN) is None
    assert cause(taken_over(), published(1, "w1", 10.9, 12.7, "cancelled"), AGAIN) == causes.RAN_OUT
    assert cause(taken_over(), late, AGAIN, fault("sigstop", "w1", 10.5, 12.4)) == causes.FROZEN
    blocked = fault("loop_blocked", "w1", 12.2, 12.4)  # between its last look at its lease and the publish
    assert cause(taken_over(), late, AGAIN, blocked) == causes.LOOP_BLOCKED


@pytest.mark.parametrize(
    ("result", "end", "disturbance", "named"),
    [
        ("retryable", 3, [], causes.FAILED),
        ("unexpected", 3, [], causes.FAILED),
        ("defer", 3, [], causes.DEFERRED),
        ("cancelled", 4, [], causes.TIMED_OUT),
        ("cancelled", 3, fault("sigterm", "w1", 2.5), causes.SHUTDOWN),
        ("cancelled", 3, [], None),
        ("delivered", 3, [], None),
    ],
)
def test_what_was_given_back_is_named_after_how_it_ended(
    result: str, end: float, disturbance: list[Line], named: str | None
) -> None:
    assert cause(given_back(), published(1, "w1", 2, end, result), AGAIN, disturbance) == named


def test_a_failure_that_arrived_is_a_lost_acknowledgement_where_something_lost_it() -> None:
    failed = published(1, "w1", 2, 2.6, "retryable")
    arrived = [line(2.5, "r", "accepted", message_id="m", token=1, payload="")]
    assert cause(given_back(), failed, AGAIN, arrived) is None
    assert cause(given_back(), published(1, "w1", 2, 3.2, "retryable"), AGAIN, arrived) == causes.GAVE_UP
    cut = fault("receiver_cut", "receiver", 2.6)
    assert cause(given_back(), failed, AGAIN, arrived, cut) == causes.ACKNOWLEDGEMENT_LOST
    withheld = [line(2.5, "r", "accepted", message_id="m", token=1, payload="", acknowledged=False)]
    assert cause(given_back(), failed, AGAIN, withheld) == causes.ACKNOWLEDGEMENT_LOST


def test_a_failure_that_arrived_may_be_that_of_a_lease_about_to_end() -> None:
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.becomes(9, lease_until=round(19 * 1e6))
    row.becomes(12, status="pending", lease_until=None)
    row.claimed(12.5, "w2")
    failed = published(1, "w1", 10.5, 10.8, "retryable")
    arrived = [line(10.6, "r", "accepted", message_id="m", token=1, payload="")]
    assert cause(row, failed, AGAIN, arrived) is None  # it had eight seconds left
    unanswered = fault("black_hole", "w1", 8.9, 10.7)  # it may not know of the heartbeat at 9
    assert cause(row, failed, AGAIN, arrived, unanswered) == causes.LEASE_ENDING
    early = published(1, "w1", 10.1, 10.4, "retryable")
    assert cause(row, early, AGAIN, [arrived[0]], unanswered) is None  # ... and had half a second of the other
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.becomes(12, status="pending", lease_until=None)
    row.claimed(12.5, "w2")
    assert cause(row, failed, AGAIN, arrived) == causes.LEASE_ENDING


def test_an_operators_retry_is_a_cause() -> None:
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.becomes(4, status="dead", lease_until=None, outcome="permanent", dead_at=1)
    row.becomes(5, status="pending", outcome=None, dead_at=None, attempts=0, token=2)
    row.claimed(6, "w2")
    again = published(3, "w2", 13, 14, "delivered")
    assert cause(row, published(1, "w1", 2, 3, "permanent"), again) == causes.OPERATOR_RETRY


def attempts_without_a_publish(*disturbances: list[Line], queues: Sequence[QueueChange] = ()) -> list[str]:
    """Judge a message that died of three claims by w1, none of which published it."""
    row = Row()
    row.becomes(0)
    for second in (1, 12, 23):
        row.claimed(second, "w1")
    dead = {"status": "dead", "lease_until": None, "outcome": "crashed", "dead_at": 1, "available_at": FAR}
    row.becomes(34, **dead, token=4)
    lines = [line(0, "c", "clock", database=0), line(0, "c", "campaign", **CAMPAIGN)]
    for place, (born, gone) in enumerate([(0.5, 3), (11, 13), (22, 24)]):
        lines.append(line(born, "c", "start", of=f"w1-{place}", pid=1, role="worker", owner="w1"))
        lines.append(line(born, f"w1-{place}", "ready"))
        lines.append(line(gone, "c", "exit", of=f"w1-{place}", pid=1, code=-9))
    lines += [each for some in disturbances for each in some]
    lines.append(line(40, "c", "phase", name="end"))
    return i13(Evidence(History(lines), Tables(row.changes, queues=list(queues)))).violations


def test_attempts_that_were_ended_from_outside_are_no_neighbours_fault() -> None:
    kills = [fault("sigkill", f"w1-{place}", at) for place, at in enumerate([2.9, 12.9, 23.9])]
    assert attempts_without_a_publish(*kills) == []
    assert attempts_without_a_publish(*kills[1:]) == []  # most of them
    told = ["message 1 is dead (crashed) after 3 attempts, and was published 0 times: others used them up"]
    assert attempts_without_a_publish(*kills[2:]) == told
    assert attempts_without_a_publish() == told
    poison = [[line(2.9, "w1-0", "fault", fault_id=1, fault="poison", target="w1-0", message_id="other")]]
    assert attempts_without_a_publish(*kills[2:], *poison) == told


def test_an_operator_who_lowers_the_limit_may_leave_a_message_none_of_its_own() -> None:
    three, twelve = QueueChange(0, "q", False, 3), QueueChange(0, "q", False, 12)
    lowered = QueueChange(30_000_000, "q", False, 3)
    assert attempts_without_a_publish(queues=[twelve, lowered]) == []
    assert (
        attempts_without_a_publish(queues=[three, replace(lowered, max_attempts=12)]) != []
    )  # raised, afterwards


def seen_open(xid: int, *seconds: int) -> list[Line]:
    """Samples that found a transaction open."""
    row = {"pid": 9, "application": "", "state": "idle in transaction", "xid": xid, "in_state_for": 0.5}
    return [line(at + 0.1, "watch", "sample", open=[row], locked=[], asked=at * SECOND) for at in seconds]


FREE = [
    line(0, "c", "start", of="w1", pid=1, role="worker", owner="w1"),
    line(0.5, "w1", "ready"),
    line(40, "c", "phase", name="end"),
]


def test_nobody_waits_for_what_its_producer_has_not_committed() -> None:
    # Found by chaos: a producer was frozen between its INSERT and its COMMIT.
    row = Row()
    row.becomes(13)
    row.claimed(19, "w1")
    tables = Tables(row.changes)
    (told,) = i13(evidence_of(tables, FREE)).violations
    assert told.startswith("message 1 was due for 6.000 s while w1 had nothing else to do")
    assert i13(evidence_of(tables, FREE, seen_open(1, 15, 18))).violations == []
    assert i13(evidence_of(tables, FREE, seen_open(7, 15, 18))).violations == [told]
    assert i13(evidence_of(tables, FREE, seen_open(1, 14))).violations != []  # five seconds are too long as well


def test_a_lease_cannot_be_taken_over_before_the_claim_is_committed() -> None:
    row = taken_over(at=17)
    row.becomes(18, status="done", lease_until=None, done_at=18)
    two = [line(0, "c", "start", of="w2", pid=2, role="worker", owner="w2"), line(0.5, "w2", "ready")]
    tables = Tables(row.changes)
    (told,) = i10(evidence_of(tables, FREE, two)).violations
    assert told.startswith("message 1: the lease of w1 ended, and w")
    assert i10(evidence_of(tables, FREE, two, seen_open(2, 15))).violations == []


# --- what others did meanwhile ---------------------------------------------------------------------------------


def evidence_of(tables: Tables, *groups: list[Line]) -> Evidence:
    start = [line(0, "c", "clock", database=0), line(0, "c", "campaign", **CAMPAIGN)]
    return Evidence(History([*start, *(each for group in groups for each in group)]), tables)


LOSSY = fault("failover_lossy", "server", 3, 5)


def test_tokens_that_a_lossy_failover_took_back_explain_an_older_arrival() -> None:
    arrived = [
        line(at, "receiver", "accepted", message_id="m", token=token, payload="")
        for at, token in ((3.5, 2), (13.5, 1))
    ]
    publishes = [*published(2, "w1", 3.2, 4, "delivered"), *published(1, "w2", 13, 14, "delivered")]
    assert i15(evidence_of(Tables(), publishes, arrived, LOSSY)).violations == []
    assert i15(evidence_of(Tables(), publishes, arrived)).violations


def test_a_row_may_be_locked_by_a_worker_that_is_frozen_in_its_claim() -> None:
    publish = published(1, "w1", 2, 6, "delivered")
    samples = [line(at + 0.1, "watch", "sample", open=[], locked=[1], asked=at * SECOND) for at in (3, 4, 5)]
    starts = [
        line(0, "c", "start", of=of, pid=1, role=role, owner=of)
        for of, role in (("w2", "worker"), ("p1", "producer"))
    ]
    frozen = fault("sigstop", "w2", 2.5, 7)
    assert i14(evidence_of(Tables(), publish, samples, starts, frozen)).violations == []
    explains_nothing: tuple[list[Line], ...] = (
        fault("sigstop", "w1", 2.5, 7),  # itself
        fault("sigstop", "w2", 7, 8),  # afterwards
        fault("sigstop", "p1", 2.5, 7),  # no worker
        fault("receiver_cut", "w2", 2.5),
        [],
    )
    for another in explains_nothing:
        (violation,) = i14(evidence_of(Tables(), publish, samples, starts, another)).violations
        assert violation.endswith("its row was locked all along (3 samples)")


def test_the_ledger_may_have_the_end_of_what_the_same_worker_lost_in_a_lossy_failover() -> None:
    row = Row()
    row.becomes(10)
    row.claimed(11, "w1")
    row.becomes(14, status="done", lease_until=None, done_at=14)
    tables = Tables(row.changes, attempts=[Attempt("message", 1, 1, "refused", lease_lost=True)])
    told = ["message 1, token 1: the ledger says refused, and it closed its row"]
    kept = published(1, "w1", 12, 13, "delivered")

    def judged(*groups: list[Line]) -> list[str]:
        return ledger(evidence_of(tables, kept, *groups)).violations

    def lost(by: str) -> list[Line]:
        return [
            replace(each, fields={**each.fields, "message_id": "lost"})
            for each in published(1, by, 2, 2.5, "permanent")
        ]

    assert judged(lost("w1"), LOSSY) == []
    assert judged(lost("w2"), LOSSY) == told
    assert judged(lost("w1")) == told
    assert judged(LOSSY) == told


def test_an_order_may_be_that_of_ends_that_a_lossy_failover_took_back() -> None:
    waiting = State("m", "q", "k", "auto", "pending", 0, 0, None, None, 0, None, 0, 0, None, None)
    changes = [
        Change(
            number, number, number, number, "", "INSERT", number, None, replace(waiting, message_id=f"m{number}")
        )
        for number in (1, 2)
    ]
    arrived = [
        line(at, "receiver", "accepted", message_id=message_id, token=1, payload="", queue="q")
        for at, message_id in ((3.5, "m2"), (13.5, "m1"))
    ]
    assert i4(evidence_of(Tables(changes), arrived, LOSSY)).violations == []
    told = ["message 2 was first accepted before message 1, which it follows"]
    assert i4(evidence_of(Tables(changes), arrived)).violations == told


def test_a_claim_that_a_lossy_failover_took_back_lasts_for_its_lease() -> None:
    row = Row()
    row.becomes(0)
    row.claimed(6, "w2")  # what w1 had claimed is gone, and its token is handed out again
    again = published(1, "w2", 7, 8, "delivered")
    assert cause(row, published(1, "w1", 5.5, 5.7, "delivered"), again, LOSSY) == causes.LOSSY_FAILOVER
    late = published(1, "w1", 15.5, 15.7, "delivered")
    assert cause(row, late, published(1, "w2", 17, 18, "delivered"), LOSSY) is None


def test_a_job_may_run_under_a_claim_that_a_lossy_failover_took_back() -> None:
    queued = JobState("j", "q", "t", None, "auto", 3, "queued", 0, 0, None, None, None, 0, None, 0, None)
    held: dict[str, Any] = {"attempts": 1, "fence": 1, "token": "x", "owner": "w2", "lease_until": 1}
    claimed = replace(queued, status="processing", **held)
    at = 12_000_000
    changes = [
        Change(1, 0, 0, 1, "", "INSERT", 1, None, queued),
        Change(2, at, at, 2, "", "UPDATE", 1, queued, claimed),
    ]
    started = {"job_id": "j", "id": 1, "attempt": 1, "fence": 1, "task": "t"}
    starts = [
        line(4, "w1", "job_start", owner="w1", **started),
        line(13, "w2", "job_start", owner="w2", **started),
    ]
    assert j4(evidence_of(Tables(jobs=changes), starts, LOSSY)).violations == []
    told = ["job 1: w1 ran it under the fence of w2", "job 1 was started twice under fence 1"]
    assert j4(evidence_of(Tables(jobs=changes), starts)).violations == told


def buried(outcome: str, second: float = 4) -> Row:
    row = Row()
    row.becomes(0)
    row.claimed(1, "w1")
    row.becomes(second, status="dead", lease_until=None, outcome=outcome, dead_at=1, available_at=FAR)
    return row


def arrived(second: float) -> list[Line]:
    return [line(second, "r", "accepted", message_id="m", token=1, payload="")]


def test_a_publish_that_ran_out_of_time_may_be_told_as_delivered_and_its_message_be_dead() -> None:
    tables = Tables(buried("exhausted").changes)
    told = ["message 1 is dead (exhausted), and its publish was delivered"]

    def died(*groups: list[Line]) -> list[str]:
        return [each for each in i1(evidence_of(tables, *groups)).violations if "is dead" in each]

    assert died(published(1, "w1", 2, 2.5, "delivered"), arrived(2.4)) == told
    assert died(published(1, "w1", 2, 3.9, "delivered"), arrived(3.8)) == []  # a thread ends after its time-out
    assert died(published(1, "w1", 2, 2.5, "delivered"), arrived(2.4), LOSSY) == []  # of a claim that may be lost
    assert died(published(1, "w9", 2, 2.5, "delivered"), arrived(2.4)) == []  # not by its holder: that is I9's


def test_a_limit_that_was_in_force_at_the_claim_may_end_a_message() -> None:
    limits = [QueueChange(0, "q", False, 1), QueueChange(1_500_000, "q", False, 3)]
    late = [QueueChange(0, "q", False, 3), QueueChange(70_000_000, "q", False, 1)]
    for second, queues, is_right in ((4, limits, True), (60, limits, True), (60, late, False), (71, late, True)):
        tables = Tables(buried("exhausted", second).changes, queues=queues)
        assert (i7(evidence_of(tables)).violations == []) is is_right, (second, queues)


def test_an_effect_may_outlast_its_message_where_a_lossy_failover_took_that_back() -> None:
    tables = Tables(effects=[("c", "m", 1)], inbox={("c", "m")})
    told = [line(2, "p", "enqueue", message_id="m", queue="q", ordering_key=None, payload="", headers="")]
    assert i6(evidence_of(tables, told, LOSSY)).violations == []
    assert i6(evidence_of(tables, LOSSY)).violations  # nobody ever enqueued it
    undone = [line(2.5, "p", "rollback", message_ids=["m"])]
    assert i6(evidence_of(tables, told, undone, LOSSY)).violations
    assert i6(evidence_of(tables, told)).violations


# --- the state table -------------------------------------------------------------------------------------------


def test_the_token_tells_who_wrote() -> None:
    row = taken_over()
    assert [step_of(change).event for change in row.changes[1:]] == [CLAIM, RECLAIM]
    dead = {"status": "dead", "lease_until": None, "outcome": "unknown_outcome", "dead_at": 1, "available_at": FAR}
    row.becomes(30, **dead)
    assert step_of(row.changes[-1]).event == BURY
    row = taken_over()
    row.becomes(30, **dead, token=3)
    assert step_of(row.changes[-1]).event == REAP
    assert not step_of(row.changes[-1]).faults


FAR = 253402214400_000_000


def third_claim(at: float, *disturbances: list[Line]) -> list[str]:
    """Judge a third attempt, made at this second; at second 100 the limit of attempts was lowered from 3 to 2."""
    row = Row()
    row.becomes(0)
    for second in (1, 2, at):
        row.claimed(second, "w1")
        row.becomes(second + 0.5, status="pending", lease_until=None)
    limits = [QueueChange(0, "q", False, 3), QueueChange(100_000_000, "q", False, 2)]
    lines = [line(0, "c", "clock", database=0), line(0, "c", "campaign", **CAMPAIGN)]
    history = History([*lines, *(each for some in disturbances for each in some)])
    return i7(Evidence(history, Tables(row.changes, queues=limits))).violations


def test_attempts_are_held_to_the_limit_that_a_worker_may_have_known() -> None:
    assert third_claim(99) == []
    assert third_claim(102) == []  # within two polls and a second
    assert third_claim(110) == ["message 1: attempt 3 of 2"]
    assert third_claim(110, fault("sigstop", "w9", 98, 109)) == []  # it knew of no change when it was frozen
    assert third_claim(110, fault("sigstop", "w9", 101.5, 109)) == ["message 1: attempt 3 of 2"]
    assert third_claim(115, fault("sigstop", "w9", 98, 109)) == ["message 1: attempt 3 of 2"]


def test_what_was_not_seen_is_not_held() -> None:
    verdict = judge(Evidence(History([line(0, "c", "campaign", **CAMPAIGN)]), Tables()))
    assert verdict.is_empty
    assert not verdict.is_clean
    assert "nothing was judged" in verdict.as_text()
    assert {finding.verdict for finding in verdict.findings} == {"not seen"}
    assert "not seen, so nothing is said of them: table, I1, I2" in verdict.as_text()


def test_what_has_no_partner_to_be_compared_with_is_not_held() -> None:
    row = taken_over()
    line_of_it = line(3, "r", "accepted", message_id="m", token=1, payload="")
    told = [
        line(0.5, "p", "enqueue", message_id="m", queue="q", ordering_key=None, payload="", headers="", bad="slow")
    ]
    worker = [line(0, "c", "start", of="w1", pid=1, role="worker", owner="w1"), line(0, "w1", "ready")]
    publish = [*published(1, "w1", 2, 3, "delivered"), line_of_it]
    unknown = judge(evidence_of(Tables(row.changes), publish))
    known = judge(evidence_of(Tables(row.changes), publish, told, worker))
    for name in ("I10", "I11", "I13"):
        assert (name, unknown[name].judged) == (name, 0)
        assert known[name].judged


def test_a_consumer_is_told_that_a_message_is_new_again_where_a_lossy_failover_took_its_effect_back() -> None:
    tables = Tables(effects=[("c", "m", 1)], inbox={("c", "m")})
    told = [
        line(second, "c", "inbox", consumer="c", message_id="m", token=1, result="accepted") for second in (2, 20)
    ]
    assert i8(evidence_of(tables, told, LOSSY)).violations == []
    assert i8(evidence_of(tables, told)).violations == ["message m: c was told twice that it is new"]
    late = fault("failover_lossy", "server", 21, 22)
    assert i8(evidence_of(tables, told, late)).violations


def test_publishes_without_an_end_have_none() -> None:
    lines = [line(0, "c", "campaign", **CAMPAIGN), *published(1, "w1", 2, None, None)]
    (publish,) = Evidence(History(lines), Tables()).publishes
    assert isinstance(publish, Publish)
    assert (publish.end, publish.result) == (None, None)
