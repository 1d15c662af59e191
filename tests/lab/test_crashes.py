"""A sample of the crash points holds; every operation has a scenario; and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest
from lab.crashes.campaign import SCENARIOS, campaign, courses, never_run, points_of, world_at
from lab.crashes.judge import Course, Point, course_of, judged
from lab.crashes.runtime import Cut, play
from lab.crashes.scripts import Dispatching, Working
from lab.crashes.world import World

from fencepost.core.operation import Operation
from fencepost.embedded import PostgresServer
from fencepost.runtime.link import Link
from fencepost.store import catalog, upkeep
from tests.postgres import fresh_database

EVERY, OFFSET = 59, 17
"""A prime, so that it falls on another statement of each scenario."""


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


def problems_of(world: World, operation: str, name: str) -> list[str]:
    """Cut one scenario at the ends of its course, with both ways to recover."""
    (scenario,) = [
        each for each in SCENARIOS if (each.operation, each.name) == (operation, name) and not each.alone
    ]
    course = course_of(world, scenario)
    ends = [
        Point(number, is_after=True, takeover=takeover)
        for number in (1, len(course.names))
        for takeover in (False, True)
    ]
    return [problem for point in ends for problem in judged(world, course, point)]


def test_every_operation_has_a_scenario(found: list[Course]) -> None:
    assert never_run(found) == []
    assert len(points_of(found)) > 1_500


def test_an_operation_that_no_scenario_runs_is_named(found: list[Course], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(catalog: catalog.Catalog) -> Operation[None]:
        yield catalog.statement("purge")

    forgotten.__module__ = upkeep.__name__
    monkeypatch.setattr(upkeep, "forgotten", forgotten, raising=False)
    assert never_run(found) == ["upkeep.forgotten"]


def test_a_sample_of_all_points_holds(world: World, found: list[Course]) -> None:
    result = campaign(world, found, every=EVERY, offset=OFFSET)
    assert result.problems == []
    assert result.cut == len(range(OFFSET, result.points, EVERY))


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
    assert any(told in problem for problem in problems_of(world, operation, name))


def test_a_lock_that_outlives_its_session_and_a_half_written_step_are_found(
    world: World, found: list[Course]
) -> None:
    course = next(each for each in found if each.scenario.operation == "outbox.claim_suspects")
    with psycopg.connect(world.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        assert any("locks are left" in each for each in judged(world, course, Point(1, is_after=False)))
    # As if what came before the COMMIT had stayed.
    wrong = Course(course.scenario, course.names, course.states[::-1], course.answer, set())
    assert any("what stands after the cut" in each for each in judged(world, wrong, Point(1, is_after=False)))


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


@pytest.mark.parametrize("make", [Dispatching, Working])
async def test_undisturbed_everything_holds_and_what_belongs_together_is_one_transaction(
    world: World, make: type[Dispatching | Working]
) -> None:
    script = make(world.url)
    try:
        saboteur, problems = await play(world.url, script)
    finally:
        script.close()
    assert problems == []
    assert NEVER_ALONE[make] <= {name for _, name in saboteur.sent}
    assert {name for name in NEVER_ALONE[make] if saboteur.alone[name]} == set()


@pytest.mark.parametrize(
    ("make", "cut"),
    [
        (Dispatching, Cut("finalize", "COMMIT", 1, is_after=True)),
        (Working, Cut("upkeep", "cron_move", 1, is_after=True)),
    ],
)
async def test_a_process_that_is_cut_goes_on_and_everything_holds(
    world: World, make: Callable[[str], Dispatching | Working], cut: Cut
) -> None:
    script = make(world.url)
    try:
        saboteur, problems = await play(world.url, script, cut)
    finally:
        script.close()
    assert saboteur.has_cut
    assert problems == []


async def test_ticks_in_another_transaction_than_their_schedule_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Link.run

    def never_atomic(link: Link, make: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        return run(link, make, **(options | {"atomic": False}))

    monkeypatch.setattr(Link, "run", never_atomic)
    script = Working(world.url)
    try:
        _, problems = await play(world.url, script, Cut("upkeep", "cron_move", 1, is_after=False))
    finally:
        script.close()
    assert any("ticks were enqueued twice" in each for each in problems)
