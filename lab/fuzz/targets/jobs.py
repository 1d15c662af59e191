"""Jobs with odd arguments, keys, results and errors; schedules with odd expressions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from fencepost import Jobs, JsonText
from fencepost.core.job import ClaimedJob, result_json
from fencepost.core.operation import Operation, run
from fencepost.core.outcome import DONE, Reschedule
from fencepost.core.states import Event
from fencepost.drivers import driver_for
from fencepost.errors import ConfigError, DedupeConflict, FencepostError, InvalidMessage
from fencepost.store import job_fenced
from fencepost.store.jobs import JobClaim, JobTerms
from fencepost.store.jobs import claim as claim_jobs
from lab.fuzz import messages, values
from lab.fuzz.places import Places
from lab.fuzz.target import ACCEPTED, Case, OneByOne, Result, Target, against_case, failed, refused, unexpected

EXPRESSIONS = (
    "15 3 * * *",
    "*/5 * * * *",
    "0 0 1 1 *",
    "0 9-17 * * mon-fri",
    "30 2 29 2 *",
    "*/10 * * * * *",
    "0 0 L * *",
)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia")


ERROR = "odd \x00 \ud800 é"
KEPT_CHARS = 4_000
"""Of an error; of a longer one its start and its end are kept."""


class EnqueuedJobs(Target):
    name = "jobs"
    share = 4
    batch = 100

    def __init__(self) -> None:
        self._jobs = Jobs()
        self._jobs.declare("plain")
        self._jobs.declare("keyed", max_running_per_key=1_000_000)

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        with psycopg.connect(places.database("jobs")) as self._conn:
            yield

    _conn: psycopg.Connection[Any]

    def case(self, chance: Random) -> Case:
        made: dict[str, Any] = {
            "args": values.json_value(chance),
            "result": values.json_value(chance),
            "options": {},
        }
        options = made["options"]
        if values.often(chance, 0.3):
            options["unique_key"] = values.some_text(chance) + str(chance.random())
        if values.often(chance, 0.3):
            options["headers"] = messages.headers(chance)
        if values.often(chance, 0.2):
            options["job_id"] = UUID(int=chance.getrandbits(128))
        if values.often(chance, 0.2):
            options["max_attempts"] = chance.choice((2, 12, 1_000_000))
        made["expected"] = messages.GOOD
        if values.often(chance, 0.4):
            _spoil(chance, made)
        return made

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        found: dict[int, Result] = {}
        rows: dict[int, int] = {}
        try:
            for number, case in enumerate(cases):
                self._enqueue(number, case, found, rows)
            self._conn.commit()
            for is_last in (False, True):
                self._turn(cases, found, rows, is_last=is_last)
        except Exception as error:  # noqa: BLE001 - one of the cases broke it for all
            self._conn.rollback()
            for number in range(len(cases)):
                found.setdefault(number, unexpected(error))
        self._conn.execute("TRUNCATE outbox_job")
        self._conn.commit()
        return [found.get(number, failed("never claimed")) for number in range(len(cases))]

    def _enqueue(self, number: int, case: Case, found: dict[int, Result], rows: dict[int, int]) -> None:
        before = self._conn.info.transaction_status
        try:
            receipt = self._jobs.enqueue(
                self._conn, case.get("task", "plain"), case.get("args"), **case.get("options", {})
            )
        except DedupeConflict as error:
            found[number] = refused(error)
        except FencepostError as error:
            is_good = case.get("expected") == messages.GOOD
            found[number] = against_case("refused", error) if is_good else refused(error)
            if self._conn.info.transaction_status != before:
                found[number] = failed("refused after database work", error)
        except Exception as error:  # noqa: BLE001 - the finding
            found[number] = unexpected(error)
        else:
            if case.get("expected") == messages.BAD:
                found[number] = against_case("accepted what it must refuse", receipt)
            rows[receipt.id] = number

    def _turn(
        self, cases: Sequence[Case], found: dict[int, Result], rows: Mapping[int, int], *, is_last: bool
    ) -> None:
        """Claim all of it and compare; then let it fail with an odd error, or be done with its result."""
        terms = JobTerms("fuzz", {name: task.terms for name, task in self._jobs.registry.tasks.items()})
        claimed = self._claimed(terms, len(rows))
        for each in claimed:
            number = rows[each.id]
            found.setdefault(number, ACCEPTED)
            if found[number] is ACCEPTED:
                found[number] = _compared(each, cases[number])
        if is_last:
            ended = [_done(each, cases[rows[each.id]]) for each in claimed]
        else:
            ended = [job_fenced.Finished(each, _failed(cases[rows[each.id]])) for each in claimed]
        for row_id in self._do(job_fenced.finalize(self._jobs.catalog, ended)):
            found[rows[row_id]] = failed("lost lease")
        self._conn.commit()
        for row_id in {*rows} - {each.id for each in claimed}:
            found[rows[row_id]] = failed("not claimed")
        for each in claimed:
            number = rows[each.id]
            if found[number] is ACCEPTED:
                found[number] = self._looked_at(each.id, cases[number], is_last=is_last)
        self._conn.commit()

    def _claimed(self, terms: JobTerms, most: int) -> list[ClaimedJob]:
        found: JobClaim = self._do(claim_jobs(self._jobs.catalog, terms, "default", most + 1))
        self._conn.commit()
        return found.claimed

    def _looked_at(self, row_id: int, case: Case, *, is_last: bool) -> Result:
        """See the job as an operator does, with its error or its result."""
        info = self._jobs.show_job(self._conn, row_id)
        if info is None:
            return failed("gone")
        if not is_last:
            is_kept = _is_kept(case.get("error", ERROR), info.last_error or "")
            return ACCEPTED if is_kept else failed("another error", repr(info.last_error)[:500])
        text = _result(case)
        if text is not None and info.result != json.loads(text):
            return failed("another result", f"{info.result!r:.300} instead of {text:.300}")
        return ACCEPTED

    def _do(self, operation: Operation[Any]) -> Any:
        return run(operation, driver_for(self._conn).execute)


def _spoil(chance: Random, made: dict[str, Any]) -> None:
    """Put one fault into a job."""
    wrong: dict[str, Any] = {
        "unique_key": values.wrong_text(chance, 1024),
        "headers": messages.bad_headers(chance),
        "job_id": chance.choice(("x", 7, b"x" * 16)),
        "max_attempts": chance.choice((0, -1, 1_000_001, 1.5, "1", True, 10**400)),
        "queue": chance.choice(("a b", "é", values.wrong_text(chance, 100))),
        "recovery": chance.choice(("maybe", "", 1, ["auto"], {"a": 1}, "\ud800")),
        "delay": chance.choice((5, "1s", timedelta.max, -timedelta(1))),
        "available_at": chance.choice((datetime.max.replace(tzinfo=UTC), "2030-01-01", 0)),
        "nonsense": 1,
    }
    kind = chance.randrange(len(wrong) + 4)
    if kind < len(wrong):
        name = list(wrong)[kind]
        made["options"][name] = wrong[name]
    elif kind == len(wrong):
        made["task"] = chance.choice(("unknown", "", 7, None, ["plain"], "\x00", "\ud800"))
    else:
        made["args"] = chance.choice((values.bad_json_value(chance), "x" * (1024 * 1024), JsonText("{")))
    made["expected"] = messages.BAD


def _compared(claimed: ClaimedJob, case: Case) -> Result:
    args, options = case.get("args"), case.get("options", {})
    wanted = json.dumps({} if args is None else args, ensure_ascii=False, separators=(",", ":"))
    if claimed.args_json != wanted:
        return failed("other args", f"{claimed.args_json:.300} instead of {wanted:.300}")
    if claimed.job.args != json.loads(wanted):
        return failed("other args for the handler", f"{claimed.job.args!r:.300}")
    if dict(claimed.job.headers) != dict(options.get("headers") or {}):
        return failed("other headers", dict(claimed.job.headers))
    if claimed.job.unique_key != options.get("unique_key"):
        return failed("another unique key", claimed.job.unique_key)
    return ACCEPTED


def _error(chance: Random) -> str:
    """Return what a handler or a publisher may say of its failure: anything."""
    parts = [values.text(chance), chance.choice((*values.NEVER, "")), values.text(chance)]
    return "".join(parts) * chance.choice((1, 1, 1, 100, 5_000)) or "x"


def _failed(case: Case) -> Reschedule:
    return Reschedule(Event.RETRY, timedelta(0), case.get("error", ERROR), refund_attempt=False)


def _is_kept(error: str, stored: str) -> bool:
    """Tell whether an error was stored: as it is but for what no store can hold, or its start and its end."""
    if len(error) <= KEPT_CHARS:
        return stored == _storable(error)
    return stored.startswith(_storable(error[:2_000])) and stored.endswith(_storable(error[-500:]))


def _storable(text: str) -> str:
    shown = {"\x00": "\\x00"} | {char: f"\\u{ord(char):04x}" for char in text if "\ud800" <= char <= "\udfff"}
    return "".join(shown.get(char, char) for char in text)


def _result(case: Case) -> str | None:
    try:
        return result_json(case.get("result"))
    except InvalidMessage:
        return None


def _done(claimed: ClaimedJob, case: Case) -> job_fenced.Finished:
    return job_fenced.Finished(claimed, DONE, _result(case))


class Schedules(OneByOne):
    name = "schedules"
    share = 2

    def __init__(self) -> None:
        self._zones = [
            *ZONES,
            "Mars/Phobos",
            "",
            "../etc/passwd",
            "/etc/passwd",
            "posix",
            "utc",
            "é",
            "\x00",
            7,
            "Europe/" * 99,
        ]

    def case(self, chance: Random) -> Case:
        expression: Any = chance.choice(EXPRESSIONS)
        if values.often(chance, 0.6):
            expression = _expression(chance)
        if values.often(chance, 0.05):
            expression = values.not_text(chance)
        return {
            "expression": expression,
            "timezone": chance.choice(ZONES) if values.often(chance, 0.8) else chance.choice(self._zones),
            "name": values.some_text(chance) if values.often(chance, 0.9) else values.wrong_text(chance, 255),
            "catch_up": chance.choice(("last", "last", "all", "none", "most", "", 7, ["last"])),
            "args": values.json_value(chance, 1) if values.often(chance, 0.9) else values.bad_json_value(chance),
            "from": chance.randrange(4_000_000_000),
        }

    def one(self, case: Case) -> Result:
        jobs = Jobs()
        jobs.declare("t")
        name, args = case.get("name", "n"), case.get("args")
        zone, catch_up = case.get("timezone", "UTC"), case.get("catch_up", "last")
        try:
            jobs.schedule(name, case.get("expression", "* * * * *"), "t", args, timezone=zone, catch_up=catch_up)
        except (ConfigError, InvalidMessage) as error:
            return refused(error)
        (schedule,) = jobs.registry.schedules.values()
        start = datetime.fromtimestamp(case.get("from", 0), UTC)
        ticks = [start, *islice(schedule.cron.after(start), 5)]
        if not all(earlier < later for earlier, later in pairwise(ticks)):
            return failed("ticks that do not rise", ticks)
        draft = jobs.job_at(schedule, ticks[-1])
        return ACCEPTED if json.loads(draft.headers)["scheduled-for"] else failed("a tick without its instant")


def _expression(chance: Random) -> str:
    """Return five or six odd fields, or a damaged expression."""
    if values.often(chance, 0.5):
        return values.damaged_text(chance, chance.choice(EXPRESSIONS), 2)
    parts = (
        "*",
        "0",
        "5",
        "59",
        "60",
        "*/7",
        "1-5",
        "5-1",
        "1,2,3",
        "L",
        "W",
        "15W",
        "mon",
        "mon#2",
        "?",
        "*/0",
        "1/2",
        "-1",
        "feb",
    )
    return " ".join(chance.choice(parts) for _ in range(chance.choice((5, 5, 5, 6, 4))))
