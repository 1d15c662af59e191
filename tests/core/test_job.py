"""What a job may hold when it is enqueued, and a job of a store's row, decoded when it is asked for."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from fencepost import Job
from fencepost.core.job import (
    MAX_ARGS_BYTES,
    MAX_PROGRESS_BYTES,
    MAX_RESULT_BYTES,
    ClaimedJob,
    JobDraft,
    JobOptions,
    job_draft,
    parsed,
    progress_json,
    result_json,
)
from fencepost.core.states import Recovery
from fencepost.errors import InvalidMessage

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
TICK = "2026-03-29T01:00:00+00:00"


def row(**changed: Any) -> tuple[Any, ...]:
    columns = {
        "id": 7,
        "job_id": str(ID),
        "queue": "q",
        "task": "t",
        "args": '{"n": 1}',
        "headers": '{"a": "b"}',
        "created_at": 1_000_000,
        "due_at": 2_000_000,
        "unique_key": None,
        "lane": "k",
    }
    return (*(columns | changed).values(), "what a statement adds")


PLAIN = Job(
    *(7, ID, "q", "t", {"n": 1}, {"a": "b"}),
    *(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), None, "k"),
)


def test_a_stored_job_is_the_same_as_one_that_was_made() -> None:
    stored = Job.stored(row())
    for each in fields(Job):
        if each.init:
            assert getattr(stored, each.name) == getattr(PLAIN, each.name), each.name
    assert stored == PLAIN
    assert repr(stored).startswith("Job(id=7, ")
    assert replace(stored, task="other") == replace(PLAIN, task="other")


def test_what_it_has_not_is_an_error() -> None:
    for job in (PLAIN, Job.stored(row())):
        with pytest.raises(AttributeError, match="nothing"):
            getattr(job, "nothing")  # noqa: B009 - mypy knows that there is none
        with pytest.raises(AttributeError):
            job.args = 1  # type: ignore[misc] # frozen, as is to be seen


def test_arguments_are_decoded_once_and_headers_cannot_be_changed() -> None:
    stored = Job.stored(row())
    assert stored.args is stored.args
    with pytest.raises(TypeError):
        stored.headers["a"] = "c"  # type: ignore[index] # a mapping that does not change, as is to be seen
    assert Job.stored(row(headers="{}")).headers == {}


@pytest.mark.parametrize("job", [PLAIN, Job.stored(row())], ids=["made", "stored"])
def test_arguments_of_a_type_take_the_place_of_the_stored_ones(job: Job) -> None:
    typed = job.with_args(["typed"])
    assert typed.args == ["typed"]
    assert (typed.id, typed.headers, typed.key) == (7, {"a": "b"}, "k")
    assert job.args == {"n": 1}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (TICK, datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("2026-03-29T01:00:00", None),  # without its offset it is no instant
        ("soon", None),
        ("", None),
    ],
)
def test_the_tick_of_a_schedule(header: str, expected: datetime | None) -> None:
    assert Job.stored(row(headers=json.dumps({"scheduled-for": header}))).scheduled_for == expected
    assert PLAIN.scheduled_for is None


def drafted(task: str = "t", args: Any = None, *, lane: str | None = None, **given: Any) -> JobDraft:
    options: dict[str, Any] = {"job_id": ID, "queue": "q", "recovery": "auto", "max_attempts": 3}
    named = {name: given.pop(name) for name in options.keys() & given.keys()}
    return job_draft(task, args, **{**options, **named}, lane=lane, options=cast(JobOptions, given))


def test_a_draft_has_what_was_said() -> None:
    made = drafted("t", {"n": 1}, lane="k", unique_key="u", headers={"a": "b"}, delay=timedelta(seconds=3))
    assert (made.task, made.args, made.lane, made.unique_key, made.delay) == ("t", '{"n":1}', "k", "u", 3.0)
    assert (drafted(lane="").lane, drafted(lane=None).lane, drafted().unique_key) == ("", None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"job_id": "x"}, "job_id must be a uuid.UUID, not str"),
        ({"task": ""}, "task"),
        ({"task": "t" * 256}, "task"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 1000000, not 0"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 1_000_001}, "max_attempts"),
        ({"args": "x" * MAX_ARGS_BYTES}, f"args has {MAX_ARGS_BYTES + 2} bytes as JSON, more than the limit"),
        ({"args": {1, 2}}, "args"),
        ({"lane": "a\0"}, "key"),
        ({"unique_key": "\ud800"}, "unique_key"),
        ({"recovery": "perhaps"}, "recovery"),
        ({"queue": "a b"}, "queue"),
        ({"headers": {"a": 1}}, "header"),
    ],
)
def test_what_cannot_be_stored_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        drafted(**given)


def test_a_result_and_a_progress_are_json_of_a_bounded_size() -> None:
    assert (result_json({"a": "é"}), progress_json(0.5)) == ('{"a":"é"}', "0.5")
    with pytest.raises(InvalidMessage, match=r"result has .* bytes as JSON, more than the limit of 1048576"):
        result_json("x" * MAX_RESULT_BYTES)
    with pytest.raises(InvalidMessage, match=r"progress has .* more than the limit of 4096"):
        progress_json("x" * MAX_PROGRESS_BYTES)


def test_what_a_column_of_json_holds() -> None:
    assert (parsed(None), parsed("null"), parsed("[1]")) == (None, None, [1])


def claimed(**changes: Any) -> ClaimedJob:
    terms = {"token": "u", "fence": 1, "attempt": 1, "max_attempts": 3, "recovery": Recovery.VERIFY}
    spans = {"lease": timedelta(seconds=60), "age_microseconds": 1_500_000, "reclaim_count": 0, "owner": "w"}
    return ClaimedJob(**{"job": PLAIN, "args_json": "1", **terms, **spans, **changes})


def test_a_claim_tells_whether_its_effect_may_be_there() -> None:
    assert (claimed().id, claimed().age) == (7, timedelta(seconds=1.5))
    assert [claimed(fence=n).may_be_repeat for n in (1, 2)] == [False, True]
    assert [claimed(attempt=n).is_to_verify for n in (1, 2)] == [False, True]
    assert not claimed(attempt=2, recovery=Recovery.AUTO).is_to_verify
