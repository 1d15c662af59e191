"""Whose turn it is: of jobs that a worker may have crashed on, and with what beside them."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import Job
from tests.runtime.job_box import JobBox


class Taken:
    """A task, and which of its jobs a worker takes at a time."""

    def __init__(self, jobs: JobBox, **options: Any) -> None:
        self._jobs = jobs
        self._together: list[set[int]] = []

        @jobs.task(**options)
        async def run(job: Job) -> None:
            self._together[-1].add(job.id)

    async def all(self) -> list[set[int]]:
        """Let a worker take what there is, until all is done."""
        async with self._jobs.worker(notify=False) as worker:
            while set(self._jobs.statuses()) != {"done"}:
                self._together.append(set())
                await worker.work_once()
        return [each for each in self._together if each]


@pytest.mark.parametrize(("attempts", "comes_alone"), [(9, False), (10, True), (11, True)])
async def test_once_a_few_went_well_the_rest_comes_as_a_batch_where_it_has_two_attempts_to_spare(
    jobs: JobBox, attempts: int, comes_alone: bool
) -> None:
    taken = Taken(jobs, max_attempts=12)
    *_, other, worn = jobs.enqueue(6)
    jobs.conn.execute(
        "UPDATE outbox_job SET attempts = CASE id WHEN %s THEN %s ELSE 1 END, fence = 1, reclaim_count = 1,"
        " attempt_token = gen_random_uuid()",
        [worn, attempts],
    )
    batches = [each for each in await taken.all() if len(each) > 1]
    assert batches == [{other, other - 1} if comes_alone else {other - 1, other, worn}]


async def test_what_crashed_again_and_again_says_nothing_of_those_that_crashed_once(jobs: JobBox) -> None:
    taken = Taken(jobs)
    often, _ = jobs.enqueue(3), jobs.enqueue(4)
    jobs.conn.execute(
        "UPDATE outbox_job SET attempts = 1, fence = 1, attempt_token = gen_random_uuid(),"
        " reclaim_count = CASE WHEN id = ANY(%s) THEN 2 ELSE 1 END,"
        " available_at = now() - CASE WHEN id = ANY(%s) THEN interval '1 min' ELSE interval '0' END",
        [often, often],
    )
    found = await taken.all()
    assert found[:3] == [{each} for each in often]
    assert [len(each) for each in found] == [1] * 7
