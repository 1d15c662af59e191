"""What `fencepost dispatch` and `fencepost work` are told to use."""

from __future__ import annotations

from fencepost import Delivery, Job, Jobs, Message

jobs = Jobs()


@jobs.task("t")
def t(job: Job) -> None:
    """Do nothing."""


async def publish(message: Message, delivery: Delivery) -> None:
    """Take whatever comes."""
