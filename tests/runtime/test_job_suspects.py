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
