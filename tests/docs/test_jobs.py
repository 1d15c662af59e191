"""What the page on jobs says is true: its lines run, its picture and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from fencepost import AsyncJobs, JobContext, Jobs, Outbox
from fencepost.cli.jobs import jobs as commands
from fencepost.client.tasks import TaskOptions
from fencepost.core.job import JobOptions
from fencepost.core.job_states import JOB_TRANSITIONS
from fencepost.core.job_stuck import StuckKind
from fencepost.runtime.worker import Worker

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]+) \|", section(title), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)", row)}


def test_the_picture_of_the_states_is_the_table() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+): (.+)$", PAGE, flags=re.MULTILINE))
    table = {(str(state), str(step.to), str(event)) for (state, event), step in JOB_TRANSITIONS.items()}
    assert drawn == table


def test_every_setting_of_a_task_is_there() -> None:
    assert first_cells("Tasks") == set(TaskOptions.__annotations__)


def test_every_option_of_an_enqueue_is_there() -> None:
    assert first_cells("Enqueue") == set(JobOptions.__annotations__)


def test_what_handlers_are_told_is_there() -> None:
    public = {name for name in dir(JobContext) if not name.startswith("_")} - {
        "note",
        "soft_limit_is_over",
        "worker",
    }
    assert first_cells("The context") == public


def test_every_kind_of_stuck_job_is_there() -> None:
    assert first_cells("Stuck jobs") - {"kind"} == {str(kind) for kind in StuckKind}


def test_every_command_is_there() -> None:
    assert set(re.findall(r"jobs (\w+)", section("Commands"))) >= set(commands.commands)


@pytest.mark.parametrize("kind", [Jobs, AsyncJobs])
def test_the_methods_for_operators_are_there(kind: type) -> None:
    named = set(re.findall(r"`(\w+)`", section("Stuck jobs").partition("In Python:")[2]))
    assert {"list_jobs", "show_job", "retry", "cancel", "fail", "stats", "purge"} <= named
    assert all(hasattr(kind, name) for name in named)


async def test_the_first_lines_work_when_pasted(database18: str, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"stand -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
    pasted: dict[str, object] = {}
    exec(compile(code, "docs/jobs.md", "exec"), pasted)  # noqa: S102 - what the page says
    with psycopg.connect(database18) as conn:
        Outbox().migrate(conn)
        conn.execute("CREATE TABLE orders (id int, closed boolean)")
        conn.commit()
        pasted["close_order"](conn, 42)  # type: ignore[operator]  # a function, as one can read
    jobs = pasted["jobs"]
    assert isinstance(jobs, Jobs)
    assert await Worker(database18, jobs).work_once() == 1
    assert capsys.readouterr().out.startswith("invoice 42 as ")
