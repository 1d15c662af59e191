"""User code is not begun under a lease that is over, even if its process stood still in the last moment before."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from fencepost.client.jobs import AsyncJobs
from fencepost.core.job import ClaimedJob, Job
from fencepost.core.lease import TrustWindow
from fencepost.core.outcome import Delivered, Result, Unstarted, Verdict
from fencepost.core.states import Recovery
from fencepost.publishers.callable import as_publisher
from fencepost.runtime.job_run import HeldJob, run_job
from fencepost.runtime.publishing import publish, publish_batch, verified
from fencepost.runtime.threads import Threads
from fencepost.testing.samples import sample_delivery, sample_message

LEASE = 30.0
ROW = (1, "0d3f8f3e-0000-4000-8000-000000000001", "default", "task", "{}", "{}", 0, 0, None, None)


def held(jobs: AsyncJobs, *, attempt: int = 1, sent_at: float | None = None) -> HeldJob:
    """Hold a job since an instant, by default since now."""
    task = jobs.registry.task("task")
    at = time.monotonic() if sent_at is None else sent_at
    lease = timedelta(seconds=LEASE)
    claimed = ClaimedJob(
        *(Job.stored(ROW), "{}", "token", attempt, attempt, 5),
        *(Recovery(task.recovery), lease, 0, 0, "w"),
    )
    return HeldJob(TrustWindow(at, LEASE), at, claimed, task)


def new_threads() -> Threads:
    return Threads(lambda: None, lambda _: None)


async def run(job: HeldJob) -> Result:
    assert job.task is not None
    threads = new_threads()
    return await run_job(job, job.task, job.context(lambda: False), threads, lambda _: None)


@pytest.fixture(params=["on the loop", "in a thread"])
def jobs(request: pytest.FixtureRequest) -> tuple[AsyncJobs, list[str]]:
    """Return a task whose handler says that it ran, and whose verifier stands still for longer than the lease."""
    made, ran = AsyncJobs(), []

    def handle(job: Job) -> None:
        ran.append("handler")

    async def handle_async(job: Job) -> None:
        handle(job)

    made.task("task", recovery="verify")(handle if request.param == "in a thread" else handle_async)
    return made, ran


@pytest.mark.parametrize(("ago", "result", "did"), [(0.0, Delivered(), ["handler"]), (LEASE, Unstarted(), [])])
async def test_a_handler_is_not_begun_under_a_lease_that_is_over(
    jobs: tuple[AsyncJobs, list[str]], ago: float, result: Result, did: list[str]
) -> None:
    made, ran = jobs
    assert await run(held(made, sent_at=time.monotonic() - ago)) == result
    assert ran == did


async def test_nor_where_the_lease_was_lost_while_its_verifier_was_asked(
    jobs: tuple[AsyncJobs, list[str]],
) -> None:
    made, ran = jobs
    job: Any = None

    @made.verify("task")
    async def verify(_: Job) -> Verdict:
        job.window = TrustWindow(time.monotonic() - LEASE, LEASE)
        return Verdict.NOT_DONE

    job = held(made, attempt=2)
    assert await run(job) == Unstarted()
    assert ran == []


class Publisher:
    """One whose functions run in a thread, and note that they did."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def publish(self, message: Any, delivery: Any) -> None:
        self.ran.append("publish")

    def publish_batch(self, messages: Any, deliveries: Any) -> list[None]:
        self.ran.append("batch")
        return [None] * len(messages)

    def verify(self, message: Any, delivery: Any) -> Verdict:
        self.ran.append("verify")
        return Verdict.NOT_DONE


@pytest.mark.parametrize(
    ("lease", "results", "did"),
    [
        (LEASE, (Delivered(), None, Delivered()), ["publish", "verify", "batch"]),
        (0.0, (Unstarted(), Unstarted(), Unstarted()), []),
    ],
)
async def test_a_thread_begins_no_publish_under_a_lease_that_is_over(
    lease: float, results: tuple[Result | None, ...], did: list[str]
) -> None:
    publisher = Publisher()
    invocable, one = as_publisher(publisher), (sample_message(), sample_delivery(lease=lease))
    options: Any = {"threads": new_threads(), "on_unexpected": lambda _: None}
    found = await publish(invocable, *one, **options), await verified(invocable, *one, **options)
    assert (*found, *(await publish_batch(invocable, [one], **options))) == results
    assert publisher.ran == did


async def test_a_batch_with_one_lease_that_is_over_is_given_back_as_a_whole() -> None:
    publisher = Publisher()
    batch = [(sample_message(), sample_delivery(lease=lease)) for lease in (LEASE, 0.0)]
    options: Any = {"threads": new_threads(), "on_unexpected": lambda _: None}
    assert await publish_batch(as_publisher(publisher), batch, **options) == [Unstarted(), Unstarted()]
    assert publisher.ran == []
