"""Scenarios of jobs and schedules, and of the tables themselves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from tests.store import job_rows
from tests.store.job_rows import TERMS, add_jobs, claim_jobs, expire_jobs, finish

from fencepost.core.job import ClaimedJob, JobDraft, job_draft
from fencepost.core.job_stuck import StuckTerms
from fencepost.core.operation import run
from fencepost.core.outcome import DONE, Action, Dead, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.core.ticks import Due
from fencepost.drivers.psycopg import PsycopgDriver
from fencepost.store import job_fenced, job_operators, jobs, partitions, schedules, schema
from fencepost.store.jobs import JobTerms, LaneWalk
from lab.crashes.producers import HOUR
from lab.crashes.scenario import Make, Repeat, Scenarios
from lab.crashes.world import APART, CATALOG, LEASE, World

SCENARIOS = Scenarios()
scenario = SCENARIOS
KEPT = JobTerms("w1", {name: replace(each, ledger=True) for name, each in TERMS.tasks.items()})


def job(unique_key: str | None = None) -> JobDraft:
    return job_draft(
        "plain",
        {"n": 1},
        uuid4(),
        queue="default",
        lane=None,
        recovery="auto",
        max_attempts=12,
        options={"unique_key": unique_key},
    )


# --- jobs ----------------------------------------------------------------------------------------------


@scenario("jobs.enqueue", Repeat.ONCE)
def a_plain_one(world: World) -> Make:
    made = job()
    return lambda: jobs.enqueue(CATALOG, made, notify=True)


@scenario("jobs.enqueue", Repeat.STATE)
def with_a_unique_key_that_is_open(world: World) -> Make:
    world.do(jobs.enqueue(CATALOG, job("u"), notify=False))
    made = job("u")
    return lambda: jobs.enqueue(CATALOG, made, notify=True)


@scenario("jobs.look", Repeat.SAME, alone=True)
def everywhere(world: World) -> Make:
    add_jobs(world.db, 2)
    return lambda: jobs.look(CATALOG, None)


@scenario("jobs.claim", Repeat.ANEW, alone=True)
def two(world: World) -> Make:
    add_jobs(world.db, 2)
    return lambda: jobs.claim(CATALOG, TERMS, "default", 10)


@scenario("jobs.claim", Repeat.ANEW)
def two_with_a_ledger(world: World) -> Make:
    add_jobs(world.db, 2)
    return lambda: jobs.claim(CATALOG, KEPT, "default", 10)


@scenario("jobs.claim_lanes", Repeat.ANEW)
def in_two_lanes(world: World) -> Make:
    for key in ("a", "a", "b"):
        add_jobs(world.db, 1, "keyed", key=key)
    return lambda: jobs.claim_lanes(CATALOG, KEPT, "default", 10, LaneWalk())


@scenario("jobs.claim_suspects", Repeat.ANEW)
def of_a_crash(world: World) -> Make:
    add_jobs(world.db, 2)
    claim_jobs(world.db)
    expire_jobs(world.db)
    world.do(jobs.reclaim(CATALOG, limit=10))
    return lambda: jobs.claim_suspects(CATALOG, KEPT, "default")


@scenario("jobs.reclaim", Repeat.STATE, alone=True)
def one_to_repeat_and_one_for_a_person(world: World) -> Make:
    add_jobs(world.db, 1)
    add_jobs(world.db, 1, "manual")
    claim_jobs(world.db)
    expire_jobs(world.db)
    return lambda: jobs.reclaim(CATALOG, limit=10)


@scenario("jobs.purge", Repeat.STATE, alone=True, removes=True)
def what_is_old(world: World) -> Make:
    add_jobs(world.db, 2)
    finish(world.db, claim_jobs(world.db), DONE)
    world.db.execute("UPDATE outbox_job SET finished_at = now() - interval '1 day'")
    return lambda: jobs.purge(CATALOG, older_than=HOUR, limit=10)


def finished(held: list[ClaimedJob]) -> list[job_fenced.Finished]:
    actions: tuple[Action, ...] = (
        DONE,
        Reschedule(Event.RETRY, HOUR, "e", refund_attempt=False),
        Reschedule(Event.DEFER, HOUR, "e", refund_attempt=True),
        Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "e"),
        Release(),
    )
    return [job_fenced.Finished(each, actions[n % len(actions)]) for n, each in enumerate(held)]


@scenario("job_fenced.finalize", Repeat.SAME, both=True, fenced=True)
def each_kind_of_result(world: World) -> Make:
    add_jobs(world.db, 5)
    world.db.execute("UPDATE outbox_job SET attempts = 3")
    held = claim_jobs(world.db)
    return lambda: job_fenced.finalize(CATALOG, finished(held))


@scenario("job_fenced.finalize", Repeat.SAME, fenced=True)
def each_kind_of_result_with_a_ledger(world: World) -> Make:
    add_jobs(world.db, 5)
    world.db.execute("UPDATE outbox_job SET attempts = 3")
    held = claim_jobs(world.db, terms=KEPT)
    return lambda: job_fenced.finalize(CATALOG, finished(held))


@scenario("job_fenced.heartbeat", Repeat.SAME, alone=True, fenced=True)
def of_two_one_of_which_is_lost(world: World) -> Make:
    add_jobs(world.db, 2)
    held = claim_jobs(world.db)
    expire_jobs(world.db, [held[0].id])
    world.do(jobs.reclaim(CATALOG, limit=10))
    return lambda: job_fenced.heartbeat(CATALOG, held, LEASE, {held[1].id: "7"})


# --- operators -----------------------------------------------------------------------------------------


@scenario("job_operators.retry", Repeat.STATE, operator=True)
def one_that_failed_and_one_that_runs(world: World) -> Make:
    row_ids = add_jobs(world.db, 2)
    finish(world.db, claim_jobs(world.db, 1), job_rows.ACTIONS["fail"])
    return lambda: job_operators.retry(CATALOG, row_ids, actor="op", reason="why", notify=True)


@scenario("job_operators.cancel", Repeat.STATE)
def one_that_runs_and_one_that_is_done(world: World) -> Make:
    row_ids = add_jobs(world.db, 2)
    finish(world.db, claim_jobs(world.db, 1), DONE)
    claim_jobs(world.db)
    return lambda: job_operators.cancel(CATALOG, row_ids, actor="op", reason="why")


@scenario("job_operators.fail", Repeat.STATE)
def one_that_waits(world: World) -> Make:
    row_ids = add_jobs(world.db)
    return lambda: job_operators.fail(CATALOG, row_ids, actor="op", reason="why")


@scenario("job_operators.list_jobs", Repeat.SAME)
def of_every_kind(world: World) -> Make:
    add_jobs(world.db, 3)
    claim_jobs(world.db, 1)
    return lambda: job_operators.list_jobs(CATALOG, job_operators.JobFilter(), after=None, limit=10)


@scenario("job_operators.show", Repeat.SAME)
def by_job_id(world: World) -> Make:
    return lambda: job_operators.show(CATALOG, UUID(int=7))


@scenario("job_operators.stats", Repeat.SAME)
def of_some(world: World) -> Make:
    add_jobs(world.db, 2)
    return lambda: job_operators.stats(CATALOG)


@scenario("job_operators.stuck", Repeat.SAME)
def one_whose_worker_is_lost(world: World) -> Make:
    add_jobs(world.db, 2)
    claim_jobs(world.db, 1)
    expire_jobs(world.db)
    return lambda: job_operators.stuck(CATALOG, StuckTerms(), limit=10)


# --- schedules -----------------------------------------------------------------------------------------

DEFINITION = schedules.Definition("plain", "* * * * *", "UTC")


def registered(world: World) -> None:
    world.do(schedules.register(CATALOG, "s", DEFINITION))
    world.db.execute("UPDATE outbox_cron SET last_tick = '2020-01-01', seen_at = now() - interval '1 hour'")


@scenario("schedules.register", Repeat.STATE, alone=True)
def a_new_one(world: World) -> Make:
    return lambda: schedules.register(CATALOG, "s", DEFINITION)


@scenario("schedules.look", Repeat.SAME, alone=True)
def all_of_them(world: World) -> Make:
    registered(world)
    return lambda: schedules.look(CATALOG, None)


@scenario("schedules.sign", Repeat.STATE, alone=True)
def one_that_was_silent(world: World) -> Make:
    registered(world)
    return lambda: schedules.sign(CATALOG, ["s"])


@scenario("schedules.step", Repeat.STATE)
def two_ticks(world: World) -> Make:
    registered(world)
    ticks = tuple(datetime(2020, 1, 1, 0, minute, tzinfo=UTC) for minute in (1, 2))

    def due(last_tick: datetime, now: datetime) -> Due:
        return Due(tuple(each for each in ticks if each > last_tick), ticks[-1])

    return lambda: schedules.step(
        CATALOG, "s", DEFINITION, adopts=False, due=due, draft=lambda tick: job(), notify=True
    )


# --- the tables themselves -----------------------------------------------------------------------------


def migrated(world: World) -> None:
    world.do(schema.migrate(APART))


def divided(world: World) -> None:
    migrated(world)
    world.do(partitions.convert(APART, size=1_000))


@scenario("schema.migrate", Repeat.STATE, apart=True)
def from_nothing(world: World) -> Make:
    return lambda: schema.migrate(APART)


@scenario("schema.check", Repeat.SAME)
def in_order(world: World) -> Make:
    return lambda: schema.check(CATALOG)


@scenario("partitions.convert", Repeat.STATE, apart=True)
def an_empty_outbox(world: World) -> Make:
    migrated(world)
    return lambda: partitions.convert(APART, size=1_000)


@scenario("partitions.add_partition", Repeat.STATE, apart=True)
def one_more(world: World) -> Make:
    divided(world)
    return lambda: partitions.add_partition(APART, ahead=3)


@scenario("partitions.drop_partition", Repeat.STATE, apart=True)
def the_first(world: World) -> Make:
    divided(world)
    world.db.execute("SELECT setval('apart.outbox_id_seq', 1500)")
    return lambda: partitions.drop_partition(APART, older_than=timedelta(0))


@scenario("partitions.is_partitioned", Repeat.SAME)
def it_is_not(world: World) -> Make:
    return lambda: partitions.is_partitioned(CATALOG)


@scenario("partitions.partitions", Repeat.SAME, apart=True)
def of_a_divided_one(world: World) -> Make:
    divided(world)
    run(partitions.is_partitioned(APART), PsycopgDriver(world.db).execute)
    return lambda: partitions.partitions(APART)
