"""What others put into a schema on the search_path never runs in our statements.

PostgreSQL prefers an operator or function of anybody's to its own where that one fits the types better, so a
statement is safe where every type fits exactly. Here hostile ones stand for every pair of types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack
from uuid import uuid4

import psycopg
import pytest

from fencepost import Acceptance, NewMessage, Outbox
from fencepost.client import sending
from fencepost.core.fence import entrance
from fencepost.core.inbox import entry
from fencepost.core.job import JobOptions, job_draft
from fencepost.core.ledger import Begun, Cause, Kind
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.core.ticks import Due
from fencepost.drivers import driver_for
from fencepost.runtime.link import Limits
from fencepost.store import (
    breaker,
    fence,
    inbox,
    job_fenced,
    job_operators,
    jobs,
    ledger,
    queues,
    schedules,
    upkeep,
)
from fencepost.store import outbox as store
from fencepost.store.expand import Expansion, close_and_expand
from fencepost.store.jobs import LaneWalk
from fencepost.store.rate import claim_within_rate
from tests.store.job_rows import ACTIONS, CATALOG, JOBS, LEASE, TERMS, expire_jobs
from tests.store.rows import OUTBOX, Connection, expire
from tests.store.test_catalog import FILES

HOSTILE = r"""
SET search_path = pg_catalog;
SET check_function_bodies = off;
DO $$
DECLARE
    types text[] := '{smallint,integer,bigint,real,"double precision",numeric,text,varchar,name,"\"char\"",oid,
        regclass,boolean,timestamptz,timestamp,date,interval,json,jsonb,jsonpath,bytea,uuid,bigint[],text[]}';
    operators text[] := '{=,<>,<,>,<=,>=,+,-,*,||,@?}';
    functions text[] := '{array_position,count,current_setting,format_type,gen_random_uuid,
        hashtextextended,json_build_object,jsonb_typeof,left,max,min,octet_length,pg_advisory_xact_lock,
        pg_notify,sum,to_regclass,to_regnamespace}';
    body text := 'LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''hostile''''; END''';
    l text; r text; o text; f text;
BEGIN
    FOREACH l IN ARRAY types LOOP
        FOREACH f IN ARRAY functions LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS boolean %s', f, l, body);
        END LOOP;
        FOREACH r IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.hostile(%s, %s) RETURNS boolean %s', l, r, body);
            FOREACH o IN ARRAY operators LOOP
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.hostile,' ||
                               ' LEFTARG = %s, RIGHTARG = %s)',
                               o, l, r);
            END LOOP;
            FOREACH f IN ARRAY functions LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS boolean %s', f, l, r, body);
            END LOOP;
        END LOOP;
    END LOOP;
    EXECUTE 'CREATE FUNCTION public.json_build_object(text, text, text, text, text, integer, text, integer, '
         || 'text, bigint, text, timestamptz, text, text) RETURNS json ' || body;
    EXECUTE 'CREATE FUNCTION public.set_config(text, varchar, boolean) RETURNS text ' || body;
END $$;
RESET ALL;
"""


@pytest.fixture
def hostile(database18: str) -> Iterator[Connection]:
    """A connection to a database without our tables, with hostile overloads in the schema that comes first."""
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(HOSTILE)
        connection.execute("SET search_path = public")
        yield connection


TRAPS = ("1.5 * 2", "random() < 0.5", "'a'::text || 1", "array_position(ARRAY[1::bigint], 1::bigint)")


def test_the_trap_works(hostile: Connection) -> None:
    for expression in TRAPS:
        with pytest.raises(psycopg.errors.RaiseException, match="hostile"):
            hostile.execute(f"SELECT {expression}".encode())


def test_no_statement_of_ours_runs_them(hostile: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    # Imported here, as that module imports from this one.
    from tests.store.test_doctor import every_queue_key_and_doctor_operation

    sent: set[str] = set()

    class Recording:
        def __init__(self, connection: Any) -> None:
            self._driver = driver_for(connection)
            self.commits_alone = self._driver.commits_alone

        def execute(self, statement: Statement) -> Rows:
            sent.add(statement.name)
            return self._driver.execute(statement)

    monkeypatch.setattr(sending, "driver_for", Recording)
    outbox = Outbox()
    hostile.execute("SET default_transaction_isolation TO 'serializable'")
    with hostile.transaction():
        outbox.migrate(hostile)
        Outbox(schema_name="another").migrate(hostile)
    hostile.execute("RESET default_transaction_isolation")
    assert outbox.check_schema(hostile) == []
    every_operation(outbox, hostile, Recording(hostile).execute)
    run(store.open_queues(outbox.catalog), Recording(hostile).execute)
    ordered_operations(outbox, hostile, Recording(hostile).execute)
    every_queue_key_and_doctor_operation(outbox, hostile, Recording(hostile).execute)
    destination_operations(outbox, hostile, Recording(hostile).execute)
    inbox_operations(hostile, Recording(hostile).execute)
    job_operations(hostile, Recording(hostile).execute)
    fence_operations(hostile, Recording(hostile).execute)
    schedule_operations(hostile, Recording(hostile).execute)
    ledger_operations(outbox, hostile, Recording(hostile).execute)
    # A dispatcher's session rules out the whole question.
    Recording(hostile).execute(Limits.below(timedelta(seconds=60)).statement_for(outbox.catalog, local=False))
    shown = hostile.execute("SHOW search_path").fetchone()
    assert shown == ("pg_catalog, pg_temp",)
    assert sent - {name for name in sent if name.startswith("migrations/")} == set(FILES)


def every_operation(outbox: Outbox, conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    minute = timedelta(minutes=1)
    key = str(uuid4())
    with conn.transaction():
        first = outbox.enqueue(conn, "e", {"n": 0}, dedupe_key=key, headers={"a": "b"})
        assert not outbox.enqueue(conn, "e", {"n": 0}, dedupe_key=key).created
        outbox.enqueue(conn, "later", 1, delay=minute)
        outbox.enqueue_many(conn, [NewMessage(event_type="e", payload=n) for n in range(5)])
    held = outbox.claim(conn, "w", lease=minute)
    assert len(held) == 6
    assert outbox.heartbeat(conn, held, minute) == []
    assert outbox.mark_done(conn, held[:1]) == []
    assert outbox.mark_done(conn, held[:1]) == []
    assert outbox.heartbeat(conn, held[:1], minute) == held[:1]
    assert outbox.reschedule(conn, held[1:2], minute, "retry") == []
    assert outbox.mark_dead(conn, held[2:4], "no") == []
    assert outbox.release(conn, held[4:5]) == []
    expire(conn)
    assert outbox.reap(conn, max_attempts=1) == 1
    assert len(outbox.list_dead(conn)) == 3
    assert outbox.retry_dead(conn, [held[2].id], "ann", "why") == [held[2].id]
    assert outbox.skip_dead(conn, [held[3].id, held[5].id], "ann") == [held[3].id, held[5].id]
    assert outbox.show(conn, first.id) is not None
    assert outbox.show(conn, first.message_id) is not None
    assert outbox.stats(conn).total("pending") > 0
    again = outbox.claim(conn, "w", lease=minute)
    assert {each.id for each in again} == {held[2].id, held[4].id}
    expire(conn)
    suspects = store.claim_suspects(
        OUTBOX.catalog, store.ClaimTerms("w", minute, 12), queues=None, batch=2, spare_attempts=1
    )
    taken = run(suspects, execute).claimed
    assert len(taken) == 2
    assert outbox.mark_done(conn, taken) == []
    assert outbox.purge(conn, timedelta(0)) == 5
    assert run(upkeep.purge_holder(outbox.catalog), execute) is None


def destination_operations(outbox: Outbox, conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """A rate, a breaker that opens, is probed and closed; an event for two destinations, one of which counts."""
    minute = timedelta(minutes=1)
    catalog, terms = outbox.catalog, store.ClaimTerms("w", minute, 12)
    outbox.set_queue(conn, "rated", "ann", rate=2)
    with conn.transaction():
        outbox.enqueue_many(conn, [NewMessage(event_type="e", payload=n, queue="rated") for n in range(5)])

    def claims(many: int) -> store.ClaimOperation:
        return store.claim(catalog, terms, queues=["rated"], batch=many)

    with conn.transaction():
        found, is_held = run(claim_within_rate(catalog, "rated", 5, claims), execute)
    assert (len(found.claimed), is_held) == (2, True)
    assert outbox.mark_done(conn, found.claimed) == []
    run(breaker.note_delivered(catalog, "rated"), execute)
    assert run(breaker.note_unavailable(catalog, "rated", threshold=1, pause=timedelta(0), error="down"), execute)
    with conn.transaction():
        probed, version = run(breaker.claim_probe(catalog, terms, "rated", patience=minute), execute)
    assert len(probed.claimed) == 1
    assert version is not None
    assert run(
        breaker.reopen_breaker(catalog, "rated", version=version, pause=minute, error="still down"), execute
    )
    assert run(breaker.close_breaker(catalog, "rated", version=None, notify=True), execute)
    with conn.transaction():
        outbox.enqueue(conn, "e", 1, queue="source", ordering_key="k")
        held = run(store.claim(catalog, terms, queues=["source"], batch=1), execute).claimed
        done = run(
            close_and_expand(catalog, [], [Expansion(each, ("counted", "rated")) for each in held]), execute
        )
    assert (done.closed.lost, done.busy) == (frozenset(), frozenset())


def inbox_operations(conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """A message, a repeat, the numbers of a key, and what is old enough to be forgotten."""
    catalog, message = OUTBOX.catalog, entry("billing", "m", 5, b"x")
    with conn.transaction():
        assert run(inbox.accept(catalog, message), execute)
        assert run(inbox.accept(catalog, message), execute) is Acceptance.REPEAT
        for number in (1, 2):
            assert run(
                inbox.accept_in_sequence(catalog, "billing", "k", number, allow_gap=False, first=1), execute
            )
    assert [each.keys for each in run(inbox.consumers(catalog, after="", limit=10), execute)] == [1]
    conn.execute("UPDATE outbox_inbox SET accepted_at = 'yesterday'")
    assert run(inbox.purge(catalog, "billing", older_than=timedelta(hours=1), limit=10), execute).count == 1


def fence_operations(conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """A newer token, an older one, and what is old enough to be forgotten."""
    catalog = OUTBOX.catalog
    for token, is_admitted in ((1, True), (2, True), (1, False)):
        with conn.transaction():
            assert bool(run(fence.admit(catalog, entrance("ledger", "r", token)), execute)) is is_admitted
    conn.execute("UPDATE outbox_fence SET admitted_at = 'yesterday'")
    assert run(fence.purge(catalog, "ledger", older_than=timedelta(hours=1), limit=10), execute).count == 1


def schedule_operations(conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """A schedule begins, a tick of it is enqueued, its definition changes, and a worker of it is alive."""
    catalog, definition = OUTBOX.catalog, schedules.Definition("report", "* * * * *", "UTC")
    tick = datetime(2026, 11, 30, tzinfo=UTC)
    job = job_draft("report", {}, uuid4(), queue="q", lane=None, recovery="auto", max_attempts=1, options={})
    run(schedules.register(catalog, "nightly", definition), execute)
    conn.execute("UPDATE outbox_cron SET last_tick = 'yesterday', seen_at = 'yesterday'")
    run(schedules.sign(catalog, ["nightly"]), execute)
    step = schedules.step(
        catalog,
        "nightly",
        replace(definition, task="other"),
        adopts=True,
        due=lambda _last_tick, now: Due((tick,), now),
        draft=lambda _tick: job,
        notify=True,
    )
    with conn.transaction():
        found = run(step, execute)
    assert found is not None
    assert found.enqueued == 1
    (stored,) = run(schedules.look(catalog, ["nightly"]), execute)
    assert stored.definition.task == "other"
    assert stored.last_tick > tick
    assert not stored.seems_unseen


def ledger_operations(outbox: Outbox, conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """An attempt at a message and one at a job, from their beginning to the purge."""
    outbox.set_queue(conn, "ledger", "ann", ledger=True)
    with conn.transaction():
        row_id = outbox.enqueue(conn, "e", 1, queue="ledger").id
    held = outbox.claim(conn, "w", queues=["ledger"])
    assert [each.result for each in outbox.attempts(conn, row_id)] == [None]
    assert outbox.mark_dead(conn, held, "no") == []
    assert outbox.retry_dead(conn, [row_id], "ann") == [row_id]
    held = outbox.claim(conn, "w", queues=["ledger"])
    assert outbox.mark_done(conn, held) == []
    assert [each.cause for each in outbox.attempts(conn, row_id)] == [None, Cause.OPERATOR_RETRY]
    run(ledger.open_attempts(outbox.catalog, Kind.JOB, [Begun(1, "token", "ledger", 1, "w")]), execute)
    assert [each.result for each in run(ledger.attempts(outbox.catalog, Kind.JOB, [1]), execute)] == ["lost"]
    assert run(ledger.purge(outbox.catalog, older_than=timedelta(0), limit=10), execute).deleted == 3


def job_operations(conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """Jobs with and without a limit: claimed, beating, finished, lost and taken back; and operators."""

    def do(operation: Operation[Any]) -> Any:
        with conn.transaction():
            return run(operation, execute)

    def add(task: str = "plain", **options: Unpack[JobOptions]) -> int:
        row_id: int = do(JOBS._enqueue(task, {"n": 1}, options)).id
        return row_id

    ids = [add(unique_key=f"{n}") for n in range(5)]
    assert add(unique_key="0") == ids[0]
    lanes = [add("keyed", key="a"), add("few")]
    add(queue="other", delay=timedelta(minutes=1))
    assert [each.queue for each in do(jobs.look(CATALOG, None))] == ["default", "other"]
    held = do(jobs.claim(CATALOG, TERMS, "default", 9)).claimed
    assert [each.id for each in held] == ids
    assert [each.id for each in do(jobs.claim_lanes(CATALOG, TERMS, "default", 9, LaneWalk())).claimed] == lanes
    assert do(job_fenced.heartbeat(CATALOG, held, LEASE, {ids[0]: "1"})) == frozenset()
    ends = ("done", "retry", "fail")
    finished = [job_fenced.Finished(each, ACTIONS[end], "2") for each, end in zip(held, ends, strict=False)]
    finished[0] = replace(finished[0], claimed=held[0]._replace(ledger=True))  # several kinds, all or nothing
    assert do(job_fenced.finalize(CATALOG, finished)) == frozenset()
    assert do(job_fenced.finalize(CATALOG, finished)) == frozenset()
    assert do(job_fenced.heartbeat(CATALOG, held, LEASE)) == {each.id for each in held[:3]}
    expire_jobs(conn)
    assert len(do(jobs.reclaim(CATALOG, limit=9))) == 4
    assert len(do(jobs.claim_suspects(CATALOG, TERMS, "default", 1)).claimed) == 1
    every_state = do(JOBS._list(None, None, None, None, None, 100)).jobs
    assert len(every_state) == 8
    assert (
        do(job_operators.show(CATALOG, ids[0])).job
        == do(job_operators.show(CATALOG, every_state[-1].job.job_id)).job
    )
    assert [each.queue for each in do(job_operators.stats(CATALOG)).queues] == ["default", "other"]
    conn.execute(
        "UPDATE outbox_job SET available_at = 'yesterday', created_at = 'yesterday' WHERE queue = 'other'"
    )
    assert [each.info.job.queue for each in do(JOBS._stuck(timedelta(hours=1), LEASE, 9)).jobs] == ["other"]
    assert do(JOBS._retry([ids[2], ids[0]], "ann", "why")).changed == (ids[2],)
    assert do(job_operators.cancel(CATALOG, [ids[2]], actor="ann", reason=None)).changed == (ids[2],)
    conn.execute("UPDATE outbox_job SET finished_at = 'yesterday' WHERE status = 'done'")
    assert do(JOBS._purge(timedelta(hours=1), 9)) == 1


def ordered_operations(outbox: Outbox, conn: Connection, execute: Callable[[Statement], Rows]) -> None:
    """A head that is dead parks its followers; to skip it promotes the next one."""
    conn.execute("INSERT INTO outbox_queue (queue, sequenced) VALUES ('counted', true)")
    assert [each.queue for each in run(queues.queue_settings(outbox.catalog), execute)] == ["counted"]
    with conn.transaction():
        for n in range(2):
            outbox.enqueue(conn, "e", n, queue="counted", ordering_key="k", dedupe_key=f"{n}")
        messages = [NewMessage(event_type="e", payload=n, queue="counted", ordering_key="k") for n in range(2)]
        outbox.enqueue_many(conn, messages)
    terms = store.ClaimTerms("w", timedelta(minutes=1), 12)

    def claims(floor: int) -> store.ClaimResult:
        scan = store.Scan(floor=floor)
        return run(store.claim(outbox.catalog, terms, queues=["counted"], batch=9, scan=scan), execute)

    first, *others = claims(0).claimed
    assert outbox.mark_dead(conn, first, "no") == []
    assert outbox.release(conn, others) == []
    assert claims(1).parked == 3
    with conn.transaction():
        assert outbox.skip_dead(conn, [first.id], "ann") == [first.id]
    run_of_three = claims(1).claimed
    assert [each.message.key_sequence for each in run_of_three] == [2, 3, 4]
    with conn.transaction():
        assert outbox.mark_done(conn, run_of_three) == []
