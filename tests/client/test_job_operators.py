"""What operators do to jobs, on every kind of connection, by both twins alike."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import psycopg

from fencepost import AsyncJobs, Jobs
from fencepost.client.job_operators import AsyncJobOperators, JobOperators
from fencepost.core.job_states import JobState
from tests.client.adapters import Adapter
from tests.client.conftest import Table


async def test_the_whole_of_it(adapter: Adapter, table: Table) -> None:
    jobs: Any = AsyncJobs() if adapter.is_async else Jobs()
    jobs.declare("t")
    async with adapter.open(table.url) as conn:

        async def call(name: str, *args: Any, **options: Any) -> Any:
            result = getattr(jobs, name)(conn, *args, **options)
            return await result if adapter.is_async else result

        async def end(how: str) -> None:
            result = getattr(conn, how)()
            if adapter.is_async:
                await result

        ids = [(await call("enqueue", "t", {"n": n})).id for n in range(3)]
        page = await call("list_jobs", limit=2)
        assert [each.id for each in page.jobs] == ids[:2]
        assert [each.id for each in (await call("list_jobs", after=page.after)).jobs] == ids[2:]
        assert (await call("cancel", ids[:2], "ann", "why")).changed == tuple(ids[:2])
        assert (await call("fail", ids[1:], "ann", "why")).changed == (ids[2],)
        found = await call("retry", [*ids, 10**9], "ann")
        assert (found.changed, found.refused) == (tuple(ids), {10**9: "it is not there"})
        assert (await call("stats")).queues[0].queued == 3
        assert (await call("stuck", timedelta(hours=1), timedelta(0))).jobs[0].id == ids[0]
        shown = await call("show_job", ids[0])
        assert (shown.state, shown.job.args, shown.last_error) == (
            JobState.QUEUED,
            {"n": 0},
            "cancelled by ann: why",
        )
        # Nothing of it was committed by itself.
        await end("rollback")
    with psycopg.connect(table.url) as other:
        assert other.execute("SELECT count(*) FROM outbox_job").fetchone() == (0,)


def test_the_twins_take_the_same_arguments() -> None:
    names = {name for name in vars(JobOperators) if not name.startswith("_")}
    assert names == {name for name in vars(AsyncJobOperators) if not name.startswith("_")}
    for name in names:
        one, other = inspect.signature(getattr(Jobs, name)), inspect.signature(getattr(AsyncJobs, name))
        assert one == other, name
        assert getattr(AsyncJobs, name).__doc__
