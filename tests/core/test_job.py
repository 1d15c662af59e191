"""A job of a store's row, whose fields are decoded when they are asked for."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from fencepost import Job

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
