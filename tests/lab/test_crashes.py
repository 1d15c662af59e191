"""A sample of the crash points holds; every operation has a scenario; and planted faults are found."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from lab.crashes import processes
from lab.crashes import scenario as scenarios
from lab.crashes.campaign import SCENARIOS, campaign, courses, never_run, points_of, world_at
from lab.crashes.judge import Course, course_of, judged
from lab.crashes.operations import several_at_once
from lab.crashes.points import Point, Way
from lab.crashes.processes import Lane, reached, tried
from lab.crashes.runtime import HANDLER, Cut, Saboteur, play
from lab.crashes.scenario import Scenario
from lab.crashes.scripts import Dispatching, Working
from lab.crashes.world import World
from lab.journal import Journal

from fencepost.client import outbox as client
from fencepost.core.operation import Operation, Rows, Statement
from fencepost.embedded import PostgresServer
from fencepost.runtime.link import Link
from fencepost.store import catalog, upkeep
from tests.postgres import fresh_database

EVERY, OFFSET = 167, 17
"""A prime, so that it falls on another statement, and another way to end there, of each scenario."""


@pytest.fixture(scope="module")
def world(postgres18: PostgresServer) -> Iterator[World]:
    with fresh_database(postgres18) as url, world_at(url) as made:
        yield made


@pytest.fixture(scope="module")
def found(world: World) -> list[Course]:
    return courses(world)


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Change a text in one of the SQL files, as long as the test runs."""
    read = catalog._read

    def sabotage(name: str, before: str, after: str) -> None:
        def reading(dialect: str, wanted: str) -> str:
            text = read(dialect, wanted)
            return text.replace(before, after) if wanted == name else text

        assert before in read("postgresql", name)
        monkeypatch.setattr(catalog, "_read", reading)
        catalog._load.cache_clear()

    yield sabotage
    monkeypatch.undo()
    catalog._load.cache_clear()


def scenario_of(operation: str, name: str) -> Scenario:
    (found,) = [each for each in SCENARIOS if (each.operation, each.name) == (operation, name) and not each.alone]
    return found


def problems_of(world: World, scenario: Scenario, numbers: Callable[[Course], range]) -> list[str]:
    """Cut a scenario after some of its statements, with both ways to recover."""
    course = course_of(world, scenario)
    points = [Point(number, Way.AFTER, takeover) for number in numbers(course) for takeover in (False, True)]
    return [problem for point in points for problem in judged(world, course, point)]


def ends_of(course: Course) -> range:
    return range(1, len(course.names) + 1, max(1, len(course.names) - 1))


def test_every_operation_has_a_scenario(found: list[Course]) -> None:
    assert never_run(found) == []
    assert several_at_once() == []
    assert len(points_of(found)) > 4_000


@pytest.mark.parametrize(
    ("module", "name"),
    [(upkeep, "upkeep.forgotten"), (client, "client.outbox.forgotten")],
    ids=["store", "client"],
)
def test_an_operation_that_no_scenario_runs_is_named(
    found: list[Course], monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    def forgotten(catalog: catalog.Catalog) -> Operation[None]:
        yield catalog.statement("purge")

    forgotten.__module__ = module.__name__
    monkeypatch.setattr(module, "forgotten", forgotten, raising=False)
    assert never_run(found) == [name]


def test_a_method_that_runs_two_operations_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self: client.Outbox, conn: Any) -> None:
        self._run(conn, self._due_queues())
        self._run(conn, self._due_queues())

    twice.__module__ = client.__name__
    monkeypatch.setattr(client.Outbox, "stats", twice)
    assert len(several_at_once()) == 1


def test_a_sample_of_all_points_holds_and_is_not_cut_again(
    world: World, found: list[Course], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "points"
    result = campaign(world, found, Journal(kept, "part"), every=EVERY, offset=OFFSET)
    assert result.problems == []
    assert result.cut == len(range(OFFSET, result.points, EVERY))
    with kept.open("a") as file:
        file.write('{"part": "store", "po')  # as if it had been killed there
    monkeypatch.setattr("lab.crashes.campaign.judged", None)
    assert campaign(world, found, Journal(kept, "part"), every=EVERY, offset=OFFSET) == result


@pytest.mark.parametrize(
    ("operation", "name", "file", "before", "after", "told"),
    [
        pytest.param(
            *(
                "fenced.mark_done",
                "under two tokens",
                "fragments/message_fence",
                "lease_version = %(token)s::bigint",
                "true",
            ),
            "a stale holder has changed outbox ",
            id="a fence without its token",
        ),
        pytest.param(
            *("fenced.release", "given back under two tokens", "finalized", "WHERE id", "WHERE false AND id"),
            "the repeat answers",
            id="a repeat that is a lost lease",
        ),
        pytest.param(
            *(
                "fenced.mark_done",
                "in order with two parked behind",
                "promote",
                "WHERE h.status",
                "WHERE false AND h.status",
            ),
            "is blocked",
            id="nobody promotes",
        ),
        pytest.param(
            *(
                "job_fenced.finalize",
                "each kind of result",
                "fragments/job_fence",
                "status = 'processing'\n",
                "true\n",
            ),
            "what stands after the repeat: outbox_job has attempts 2, not 3",
            id="a refund that is made twice",
        ),
        pytest.param(
            *("schedules.step", "two ticks", "cron_move", "greatest(last_tick, ", "least(last_tick, "),
            "what stands after the repeat: outbox_job has 4 rows, not 2",
            id="ticks that come again",
        ),
        pytest.param(
            *("outbox.reap", "in two queues", "reap", "{next_token}", "o.lease_version - 1"),
            "the token of outbox",
            id="a token that falls",
        ),
    ],
)
def test_a_planted_fault_is_found(
    world: World,
    sabotaged: Callable[[str, str, str], None],
    operation: str,
    name: str,
    file: str,
    before: str,
    after: str,
    told: str,
) -> None:
    sabotaged(file, before, after)
    found = problems_of(world, scenario_of(operation, name), ends_of)
    assert any(told in problem for problem in found)


def torn(
    operation: Operation[Any], after: str, then: Callable[[], Operation[Any]] | None = None
) -> Operation[Any]:
    """Commit in the midst of an operation, behind its first statement of this name."""
    rows: Rows | None = None
    while True:
        try:
            statement = operation.send(rows)  # type: ignore[arg-type]  # None the first time, as generators want
        except StopIteration as stop:
            return stop.value
        rows = yield statement
        if statement.name == after:
            after = ""
            yield Statement("COMMIT", "COMMIT")
            yield Statement("BEGIN", "BEGIN")
            if then is not None:
                yield from then()


def in_the_midst(course: Course) -> range:
    assert course.names.count("COMMIT") == 2
    return range(course.names.index("COMMIT") + 1, course.names.index("COMMIT") + 2)


def problems_of_torn(
    world: World, operation: str, name: str, after: str, then: Callable[[], Operation[Any]] | None = None
) -> list[str]:
    whole = scenario_of(operation, name)

    def prepare(world: World) -> scenarios.Make:
        make = whole.prepare(world)
        if then is not None:  # a row without a token cannot be leased: the table itself refuses that
            world.db.execute("UPDATE outbox SET lease_version = 5")
        return lambda: torn(make(), after, then)

    return problems_of(world, replace(whole, prepare=prepare), in_the_midst)


@pytest.mark.parametrize(
    ("operation", "name", "after"),
    [
        ("enqueue.enqueue_many", "of several keys and queues", "enqueue_many"),
        ("enqueue.enqueue_events", "for two destinations each", "enqueue_many"),
        ("finalize.finalize", "each kind of result with a ledger", "mark_done"),
        ("finalize.finalize", "the first of a key and the second goes back", "mark_done_ordered"),
        ("expand.close_and_expand", "one and a delivery beside it", "mark_done"),
        ("operators.skip_dead", "the head of a key with two parked behind it", "dead_skip"),
        ("schedules.step", "two ticks", "job_enqueue"),
    ],
)
def test_an_operation_in_two_transactions_is_found(world: World, operation: str, name: str, after: str) -> None:
    found = problems_of_torn(world, operation, name, after)
    assert any("what stands after the cut" in each for each in found)


def test_a_claim_that_commits_before_it_raises_the_token_is_found(
    world: World, sabotaged: Callable[[str, str, str], None]
) -> None:
    sabotaged("fragments/claim_set", "lease_version = {next_token}", "lease_version = o.lease_version")

    def raised() -> Operation[None]:
        yield Statement("raise", "UPDATE outbox SET lease_version = lease_version + 1 WHERE status = 'processing'")

    found = problems_of_torn(world, "outbox.claim", "of two queues", "claim", raised)
    assert any("outbox has status 'processing', not 'pending'" in each for each in found)


def test_a_lock_that_outlives_its_session_and_a_half_written_step_are_found(
    world: World, found: list[Course]
) -> None:
    course = next(each for each in found if each.scenario.operation == "outbox.claim_suspects")
    with psycopg.connect(world.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        assert any("locks are left" in each for each in judged(world, course, Point(1, Way.BEFORE)))
    # As if what came before the COMMIT had stayed.
    wrong = Course(course.scenario, course.names, course.states[::-1], course.answer, set())
    assert any("what stands after the cut" in each for each in judged(world, wrong, Point(1, Way.BEFORE)))


# --- a dispatcher and a worker -------------------------------------------------------------------------

NEVER_ALONE = {
    Dispatching: {
        *("ledger_open", "ledger_close", "rate_hold", "rate_spend", "breaker_probe", "keys_stranded"),
        *("lock_keys", "mark_done_ordered", "promote", "try_lock_keys", "expand"),
    },
    Working: {
        *("ledger_open", "ledger_close", "job_lock", "job_lanes_lock", "job_claim_lanes"),
        *("cron_hold", "job_enqueue", "cron_move"),
    },
}
"""What is right only together with others, in one transaction."""


@pytest.fixture
def lane(world: World, tmp_path: Path) -> Lane:
    return Lane(world.url, tmp_path / "notes", timedelta(seconds=1.5))


async def played(lane: Lane, make: type[Dispatching | Working], cut: Cut | None = None) -> tuple[Any, list[str]]:
    with contextlib.closing(make(lane.url, lane.notes, lane.lease)) as script:
        return await play(lane.url, script, cut)


@pytest.mark.parametrize("make", [Dispatching, Working])
async def test_undisturbed_everything_holds_and_what_belongs_together_is_one_transaction(
    lane: Lane, make: type[Dispatching | Working]
) -> None:
    saboteur, problems = await played(lane, make)
    assert problems == []
    assert NEVER_ALONE[make] <= {name for _, name in saboteur.sent}
    assert {name for name in NEVER_ALONE[make] if saboteur.alone[name]} == set()


@pytest.mark.parametrize(
    ("make", "cut"),
    [
        (Dispatching, Cut("finalize", "COMMIT", 1, is_after=True)),
        (Dispatching, Cut("claim", "claim", 1, is_after=True, kills=True)),
        (Working, Cut(HANDLER, "plain", 1, is_after=True, kills=True)),
    ],
    ids=str,
)
def test_a_process_that_is_cut_or_killed_has_everything_hold(
    lane: Lane, make: type[Dispatching | Working], cut: Cut
) -> None:
    ((_, answer),) = tried(make, [lane], [cut])
    assert answer.has_cut
    assert answer.problems == []


class Forgetful(Working):
    """Has its process lose what a killed one has left: it deletes whatever is leased."""

    @contextlib.asynccontextmanager
    async def running(self, url: str) -> AsyncIterator[None]:
        self.world.db.execute("DELETE FROM outbox_job WHERE reserved_by = 'w1' AND task = 'kept'")
        self.world.db.execute("UPDATE outbox_job SET attempts = 9 WHERE reserved_by = 'w1'")
        async with super().running(url):
            yield


def test_what_goes_wrong_after_a_process_was_killed_is_found(lane: Lane) -> None:
    ((_, answer),) = tried(Forgetful, [lane], [Cut(HANDLER, "slow", 1, is_after=False, kills=True)])
    assert answer.has_cut
    assert any("after 10 attempts" in each or "after 9 attempts" in each for each in answer.problems)


class Evasive(Working):
    """Passes by its cut in its first run, as if that had looked for work once less."""

    def __init__(self, url: str, notes: Path, lease: timedelta) -> None:
        super().__init__(url, notes, lease)
        self._has_run = notes.with_suffix(".has_run")

    @contextlib.asynccontextmanager
    async def running(self, url: str) -> AsyncIterator[None]:
        if not self._has_run.exists():
            self.saboteur = Saboteur(url)
        self._has_run.touch()
        async with super().running(url):
            yield


def test_a_run_that_passes_by_its_cut_is_repeated(lane: Lane) -> None:
    ((_, answer),) = reached(Evasive, [lane], [Cut(HANDLER, "plain", 1, is_after=True, kills=True)])
    assert answer.has_cut
    assert answer.problems == []


def test_what_is_never_reached_is_told(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TRIES", 1)
    ((_, answer),) = reached(Working, [lane], [Cut(HANDLER, "plain", 99, is_after=True, kills=True)])
    assert not answer.has_cut


async def test_ticks_in_another_transaction_than_their_schedule_are_found(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Link.run

    def never_atomic(link: Link, make: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        return run(link, make, **(options | {"atomic": False}))

    monkeypatch.setattr(Link, "run", never_atomic)
    _, problems = await played(lane, Working, Cut("upkeep", "cron_move", 1, is_after=False))
    assert any("ticks were enqueued twice" in each for each in problems)
