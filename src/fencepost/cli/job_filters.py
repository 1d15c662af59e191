"""Which jobs a command is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fencepost.core.job_states import JobOutcome, JobState

STATUSES = [str(state) for state in JobState]
OUTCOMES = [str(outcome) for outcome in JobOutcome]

queue_option = click.option("--queue", metavar="NAME", help="Only of this queue.")
task_option = click.option("--task", metavar="NAME", help="Only of this task.")
outcome_option = click.option("--outcome", type=click.Choice(OUTCOMES), help="Only finished for this reason.")


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every filter."""
    return queue_option(task_option(outcome_option(command)))


def filters_text(queue: str | None, task: str | None, outcome: str | None) -> str:
    """Return the filters in words, behind a noun."""
    return (
        (f" of queue {queue}" if queue else "")
        + (f" of task {task}" if task else "")
        + (f" with outcome {outcome}" if outcome else "")
    )
