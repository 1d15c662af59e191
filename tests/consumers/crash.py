"""Runs an example that is killed at a chosen moment: ``python -m tests.consumers.crash MOMENT FILE``.

The moments are ``before-commit``, when the effect is made; ``after-commit``, when the message is not acknowledged
yet; ``never``; and ``random``, any of them by chance. The process ends by SIGKILL, as by the kernel's hand.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
from typing import Any

import confluent_kafka

from fencepost.drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver

MOMENTS = ("before-commit", "after-commit", "never", "random")
SOON = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 200}
"""A Kafka group waits for a member that died; the default is 45 s."""
CHANCE = 0.1
"""That a commit ends the process, before or after it, where that is left to chance."""


def main() -> None:
    moment, path = sys.argv[1:]
    assert moment in MOMENTS
    commit, acommit = PsycopgDriver.commit, AsyncPsycopgDriver.commit

    def dies(now: str) -> None:
        if moment == now or (moment == "random" and random.random() < CHANCE):  # noqa: S311 - no secret
            os.kill(os.getpid(), signal.SIGKILL)

    def committed(driver: Any) -> None:
        dies("before-commit")
        commit(driver)
        dies("after-commit")

    async def acommitted(driver: Any) -> None:
        dies("before-commit")
        await acommit(driver)
        dies("after-commit")

    PsycopgDriver.commit = committed  # type: ignore[method-assign, assignment]  # that is what this is for
    AsyncPsycopgDriver.commit = acommitted  # type: ignore[method-assign, assignment]  # the same
    kafka_consumer = confluent_kafka.Consumer
    confluent_kafka.Consumer = lambda settings: kafka_consumer(settings | SOON)  # type: ignore[misc, assignment]  # so
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
