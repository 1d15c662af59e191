"""Schedules as they are declared: what is refused at once, and what an expression means where clocks change."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import AsyncJobs, ConfigError, InvalidMessage, Jobs
from fencepost.client import cron
from fencepost.client.cron import Cron

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


@pytest.fixture(params=[Jobs, AsyncJobs])
def jobs(request: pytest.FixtureRequest) -> Jobs | AsyncJobs:
    made: Jobs | AsyncJobs = request.param()
    made.declare("report")
    made.declare("per customer", max_running_per_key=1)
    return made


def between(expression: str, zone: str, begin: str, end: str) -> list[str]:
    """Return the ticks in (begin, end], both on the zone's wall, as they stand there with their offsets."""
    first, last = (
        datetime.fromisoformat(each).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for each in (begin, end)
    )
    found: list[str] = []
    for tick in Cron(expression, zone).after(first):
        if tick > last:
            return found
        found.append(f"{tick.astimezone(ZoneInfo(zone)):%H:%M%z}")
    return found


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"task": "nothing"}, "there is no task 'nothing'"),
        ({"task": ["nothing"]}, "there is no task"),
        ({"expression": "* * * *"}, "five fields"),
        ({"expression": "60 * * * *"}, "Bad minute"),
        ({"expression": "@daily"}, "five fields"),
        ({"expression": ""}, "must not be empty"),
        ({"expression": None}, "must be text"),
        ({"expression": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"expression": "* * * * *\x00"}, "NUL"),
        ({"timezone": "Europe/Atlantis"}, "'Europe/Berlin'"),
        ({"timezone": "Europe"}, "is unknown"),
        ({"timezone": "../etc/passwd"}, "is unknown"),
        ({"timezone": "CET+1 "}, "is unknown"),
        ({"name": ""}, "must not be empty"),
        ({"name": "x" * 256}, "more than the limit of 255"),
        ({"catch_up": "some"}, "'last', 'all' or 'none'"),
        ({"delay": timedelta(1)}, "there is no option 'delay'"),
        ({"headers": {"scheduled-for": "now"}}, "is ours"),
    ],
)
def test_what_cannot_work_is_refused_at_once(jobs: Jobs | AsyncJobs, changed: dict[str, Any], remedy: str) -> None:
    arguments: dict[str, Any] = {"name": "nightly", "expression": "15 3 * * *", "task": "report"} | changed
    with pytest.raises(ConfigError, match=remedy):
        jobs.schedule(**arguments)
    assert not jobs.registry.schedules


@pytest.mark.parametrize(
    "changed",
    [{"args": {"n": float("nan")}}, {"task": "per customer"}, {"queue": "no queue"}, {"max_attempts": 0}],
)
def test_a_job_that_could_not_be_enqueued_is_refused_at_once(
    jobs: Jobs | AsyncJobs, changed: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"name": "nightly", "expression": "15 3 * * *", "task": "report"} | changed
    with pytest.raises(InvalidMessage):
        jobs.schedule(**arguments)
    assert not jobs.registry.schedules


def test_a_name_is_given_once(jobs: Jobs | AsyncJobs) -> None:
    jobs.schedule("nightly", "15 3 * * *", "report")
    with pytest.raises(ConfigError, match="already"):
        jobs.schedule("nightly", "15 4 * * *", "report")


def test_without_its_library_the_extra_is_named(jobs: Jobs | AsyncJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(cron, "find_spec", lambda name: None if name == "cronsim" else found(name))
    with pytest.raises(ConfigError, match=r"pip install 'fencepost\[cron\]'"):
        jobs.schedule("nightly", "15 3 * * *", "report")


# --- what is enqueued --------------------------------------------------------------------------------------


def test_the_job_of_a_tick_says_which_and_has_its_own_id(jobs: Jobs | AsyncJobs) -> None:
    jobs.schedule(
        "nightly",
        "15 3 * * *",
        "per customer",
        {"n": 1},
        timezone=BERLIN,
        queue="slow",
        key="k",
        headers={"a": "b"},
    )
    schedule = jobs.registry.schedules["nightly"]
    ticks = list(islice(schedule.cron.after(datetime(2026, 11, 30, tzinfo=UTC)), 2))
    first, second = (jobs.job_at(schedule, tick) for tick in ticks)
    assert first.headers == '{"a":"b","scheduled-for":"2026-11-30T02:15:00+00:00"}'
    assert (first.task, first.args, first.queue, first.lane) == ("per customer", '{"n":1}', "slow", "k")
    assert first.job_id == jobs.job_at(schedule, ticks[0]).job_id
    assert first.job_id != second.job_id


# --- where clocks change -----------------------------------------------------------------------------------

SPRING = {BERLIN: "2026-03-29", NEW_YORK: "2026-03-08"}
AUTUMN = {BERLIN: "2026-10-25", NEW_YORK: "2026-11-01"}
OFFSETS = {BERLIN: ("+0100", "+0200"), NEW_YORK: ("-0500", "-0400")}
# New York's hour is 1 o'clock in autumn, Berlin's is 2.
TWICE = {BERLIN: 2, NEW_YORK: 1}


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_a_time_that_does_not_exist_comes_when_the_clock_has_jumped(zone: str) -> None:
    day, (_, summer) = SPRING[zone], OFFSETS[zone]
    assert between("30 2 * * *", zone, f"{day} 00:00", f"{day} 12:00") == [f"03:00{summer}"]
    assert between("0,30 2,3 * * *", zone, f"{day} 00:00", f"{day} 12:00") == [f"03:00{summer}", f"03:30{summer}"]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_a_time_that_exists_twice_comes_once(zone: str) -> None:
    day, (_, summer), hour = AUTUMN[zone], OFFSETS[zone], TWICE[zone]
    assert between(f"30 {hour} * * *", zone, f"{day} 00:00", f"{day} 12:00") == [f"0{hour}:30{summer}"]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_it_does_not_come_again_for_who_looks_within_the_second_hour(zone: str) -> None:
    """A worker's last tick, or a new definition, may lie there."""
    day, hour = AUTUMN[zone], TWICE[zone]
    within = datetime.fromisoformat(f"{day} 0{hour}:10").replace(tzinfo=ZoneInfo(zone), fold=1)
    first = next(Cron(f"30 {hour} * * *", zone).after(within.astimezone(UTC)))
    assert first.astimezone(ZoneInfo(zone)).date() == within.date() + timedelta(days=1)


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
@pytest.mark.parametrize("expression", ["*/30 * * * *", "0,30 * * * *", "0 */30 * * * *"])
def test_every_so_many_minutes_goes_by_real_time(zone: str, expression: str) -> None:
    for day, hours in ((SPRING[zone], 23), (AUTUMN[zone], 25)):
        begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        ticks = list(islice(Cron(expression, zone).after(begin), 2 * hours))
        assert ticks == [begin + timedelta(minutes=30 * n) for n in range(1, 2 * hours + 1)]
        assert ticks[-1].astimezone(ZoneInfo(zone)).time().isoformat() == "00:00:00"


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_every_so_many_minutes_of_one_hour_comes_as_often_as_that_hour(zone: str) -> None:
    (winter, summer), hour = OFFSETS[zone], TWICE[zone]
    assert between("*/30 2 * * *", zone, f"{SPRING[zone]} 00:00", f"{SPRING[zone]} 12:00") == []
    assert between(f"*/30 {hour} * * *", zone, f"{AUTUMN[zone]} 00:00", f"{AUTUMN[zone]} 12:00") == [
        *(f"0{hour}:00{summer}", f"0{hour}:30{summer}"),
        *(f"0{hour}:00{winter}", f"0{hour}:30{winter}"),
    ]


CHANGES = [datetime.fromisoformat(day).replace(tzinfo=UTC) for days in (SPRING, AUTUMN) for day in days.values()]
EXPRESSIONS = [
    "30 2 * * *",
    "15,45 1-3 * * *",
    "*/7 * * * *",
    "*/20 2 * * *",
    "5 * * * *",
    "0 0 * * *",
    "*/9 */30 1-3 * * *",
]


@settings(deadline=None)  # the first of a zone reads its file
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from([BERLIN, NEW_YORK, "UTC", "Asia/Kolkata"]),
    st.sampled_from(CHANGES),
    st.lists(st.integers(0, 20 * 60 * 60), min_size=2, max_size=8),
)
def test_ticks_are_the_same_wherever_somebody_begins_to_ask(
    expression: str, zone: str, change: datetime, seconds: list[int]
) -> None:
    """A worker asks from the last tick on, another from an instant of its own: they must not differ."""
    begin, *others = (change - timedelta(hours=2) + timedelta(seconds=each) for each in sorted(seconds))
    end = change + timedelta(days=1)
    made = Cron(expression, zone)

    def ticks(since: datetime) -> list[datetime]:
        found = []
        for tick in made.after(since):
            if tick > end:
                break
            found.append(tick)
        return found

    whole = ticks(begin)
    assert whole == sorted(set(whole))
    for other in others:
        assert ticks(other) == [tick for tick in whole if tick > other]
