"""Whose turn it is: of jobs that a worker may have crashed on, and with what beside them."""

from __future__ import annotations

import pytest

from fencepost import Job
from tests.runtime.job_box import JobBox


@pytest.mark.parametrize(("attempts", "comes_alone"), [(9, False), (10, True), (11, True)])
async def test_once_a_few_went_well_the_rest_comes_as_a_batch_where_it_has_two_attempts_to_spare(
    jobs: JobBox, attempts: int, comes_alone: bool
) -> None:
    together: list[set[int]] = []

    @jobs.task(max_attempts=12)
    async def run(job: Job) -> None:
        together[-1].add(job.id)

    *_, other, worn = jobs.enqueue(6)
    jobs.conn.execute(
        "UPDATE outbox_job SET attempts = CASE id WHEN %s THEN %s ELSE 1 END, fence = 1, reclaim_count = 1,"
        " attempt_token = gen_random_uuid()",
        [worn, attempts],
    )
    async with jobs.worker(notify=False) as worker:
        while not jobs.are_done(6):
            together.append(set())
            await worker.work_once()
    batches = [each for each in together if len(each) > 1]
    assert batches == [{other, other - 1} if comes_alone else {other - 1, other, worn}]


async def test_what_crashed_again_and_again_says_nothing_of_those_that_crashed_once(jobs: JobBox) -> None:
    together: list[set[int]] = []

    @jobs.task()
    async def run(job: Job) -> None:
        together[-1].add(job.id)

    often, _ = jobs.enqueue(3), jobs.enqueue(4)
    jobs.conn.execute(
        "UPDATE outbox_job SET attempts = 1, fence = 1, attempt_token = gen_random_uuid(),"
        " reclaim_count = CASE WHEN id = ANY(%s) THEN 2 ELSE 1 END,"
        " available_at = now() - CASE WHEN id = ANY(%s) THEN interval '1 min' ELSE interval '0' END",
        [often, often],
    )
    async with jobs.worker(notify=False) as worker:
        while not jobs.are_done(7):
            together.append(set())
            await worker.work_once()
    claimed = [each for each in together if each]
    assert claimed[:3] == [{each} for each in often]
    assert [len(each) for each in claimed] == [1] * 7
