"""What operations make of answers that a database gives in rare moments only: they are driven by hand here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost import DedupeConflict, Inbox, NewMessage, Outbox, SchemaError
from fencepost.core.draft import Draft, draft
from fencepost.core.job import JobDraft, JobOptions, job_draft
from fencepost.core.ledger import AttemptResult
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.core.outcome import DONE, Release
from fencepost.drivers import driver_for
from fencepost.errors import ConfigError
from fencepost.store import enqueue, finalize, inbox, job_operators, jobs, partitions, queues, schema
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog, Names
from fencepost.store.finalize import Finalized
from tests.store.job_rows import TERMS
from tests.store.rows import Connection, add, claim

CATALOG = Catalog(Names())

Answer = Callable[[Statement], Rows]


def asked(operation: Operation[Any], **answers: Rows | Answer) -> tuple[Any, list[str]]:
    """Run an operation on these answers, by statement; all others have no rows. Return the statements as well."""
    sent: list[str] = []

    def execute(statement: Statement) -> Rows:
        sent.append(statement.name)
        answer = answers.get(statement.name, [])
        return answer(statement) if callable(answer) else answer

    return run(operation, execute), sent


def message(**options: Any) -> Draft:
    return draft(NewMessage(event_type="e", payload=1, **options), uuid4())


def job(unique_key: str | None) -> JobDraft:
    options: JobOptions = {} if unique_key is None else {"unique_key": unique_key}
    return job_draft("t", {}, uuid4(), queue="q", lane=None, recovery="auto", max_attempts=3, options=options)


# --- producers -------------------------------------------------------------------------------------------


def test_a_dedupe_key_that_comes_and_goes_is_given_up_on() -> None:
    with pytest.raises(DedupeConflict, match="comes and goes"):
        asked(enqueue.enqueue(CATALOG, message(dedupe_key="k"), notify=False))


def test_a_key_that_comes_and_goes_gives_every_number_back() -> None:
    counts: list[int] = []

    def draw(statement: Statement) -> Rows:
        counts.extend(statement.params["counts"])
        return [("default", "k", 7)]

    keyed = message(dedupe_key="d", ordering_key="k")
    with pytest.raises(DedupeConflict):
        asked(enqueue._enqueue_one(CATALOG, keyed, notify=False, counted=True), next_sequences=draw)
    assert counts
    assert sum(counts) == 0


def test_one_that_is_swallowed_is_refused() -> None:
    with pytest.raises(SchemaError, match="answered with no row"):
        asked(enqueue.enqueue(CATALOG, message(), notify=False))


def test_what_the_database_says_of_an_insert_is_passed_on() -> None:
    def refuse(_: Statement) -> Rows:
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        asked(enqueue.enqueue(CATALOG, message(), notify=False), enqueue=refuse)


def test_many_of_which_one_is_swallowed_are_refused() -> None:
    drafts = [message(), message()]
    only_one = [(1, str(drafts[0].message_id), "default", True)]
    with pytest.raises(SchemaError, match="answered with no row"):
        asked(enqueue.enqueue_many(CATALOG, drafts, notify=False), enqueue_many=only_one)


@pytest.mark.parametrize(("unique_key", "inserts"), [(None, 1), ("k", jobs.UNIQUE_TRIES)])
def test_a_job_that_is_swallowed_is_refused(unique_key: str | None, inserts: int) -> None:
    sent: list[str] = []

    def swallow(statement: Statement) -> Rows:
        sent.append(statement.name)
        return []

    with pytest.raises(SchemaError, match="answers with no row"):
        asked(jobs.enqueue(CATALOG, job(unique_key), notify=False), job_enqueue=swallow)
    assert len(sent) == inserts


# --- workers ---------------------------------------------------------------------------------------------


def test_a_claim_that_parks_again_and_again_ends() -> None:
    parked_only = [(None,) * 20 + (5, 3)]
    terms = store.ClaimTerms("w", TERMS.tasks["plain"].lease, 3)
    found, sent = asked(store._claim_from(CATALOG, terms, "q", 10, store.Scan(statements=3)), claim=parked_only)
    assert sent == ["claim"] * 3
    assert (found.claimed, found.parked, found.waiting) == ([], 15, 3)


def test_where_there_is_no_queue_nothing_is_looked_at() -> None:
    assert asked(jobs.look(CATALOG, None)) == ([], ["job_queues"])


def test_suspects_are_left_where_others_are_at_the_lanes() -> None:
    found, _ = asked(jobs.claim_suspects(CATALOG, TERMS, "q"), job_lanes_lock=[(False,)])
    assert found.is_busy


def test_an_attempt_that_had_to_wait_does_not_stand_as_delivered(db: Connection) -> None:
    add(db)
    (held,) = claim(db)
    it, none = frozenset({held.id}), frozenset[int]()
    assert finalize._end(Finalized(none, busy=it), held, DONE)[1] is AttemptResult.DEFERRED
    assert finalize._end(Finalized(none, out_of_turn=it), held, DONE)[1] is AttemptResult.OUT_OF_TURN
    assert finalize._end(Finalized(none, out_of_turn=it), held, Release())[1] is AttemptResult.RELEASED
    assert finalize._end(Finalized(none), held, DONE)[1] is AttemptResult.DELIVERED


def test_an_inbox_tells_what_it_has(db: Connection) -> None:
    of_mine = Inbox("billing")
    with db.transaction():
        of_mine.accept(db, "m1")
    for message_id, expected in (("m1", True), ("m2", False)):
        assert run(inbox.has_accepted(CATALOG, "billing", message_id), driver_for(db).execute) is expected


# --- operators -------------------------------------------------------------------------------------------


def test_a_job_that_was_changed_in_between_is_told_so() -> None:
    row = (1, "failed", "permanent", None, None)
    found, _ = asked(job_operators.retry(CATALOG, [1], actor="ann", reason=None, notify=True), job_refused=[row])
    assert found.refused == {1: "somebody else changed it just now"}


def test_a_queues_settings_need_wake_nobody(db: Connection) -> None:
    outbox = Outbox(notify=False, allow_autocommit=True)
    assert outbox.set_queue(db, "q", "ann", weight=3).weight == 3
    change = queues.change(CATALOG, "q", {"weight": 4}, actor="ann", notify=False)
    assert run(change, driver_for(db).execute).weight == 4


# --- partitions and tables -------------------------------------------------------------------------------


def test_one_table_is_no_partitions(db: Connection) -> None:
    assert run(partitions.is_partitioned(CATALOG), driver_for(db).execute) is False


def test_partitions_without_a_default_one_have_nothing_left_over() -> None:
    answers: dict[str, Any] = {
        "partitions/state": [(True, 5)],
        "partitions/list": [("outbox_p0", "FOR VALUES FROM ('0') TO ('1000')", 3, 8192)],
    }
    found, sent = asked(partitions.partitions(CATALOG), **answers)
    assert (found.default, found.default_is_empty) == (None, True)
    assert "partitions/is_empty" not in sent


def test_the_first_partition_needs_a_size() -> None:
    answers: dict[str, Any] = {"partitions/state": [(True, 5)]}
    with pytest.raises(ConfigError, match="no partition to take the size from"):
        asked(partitions.add_partition(CATALOG), **answers)


def test_a_partitions_name_that_is_too_long_is_refused() -> None:
    long = Catalog(Names(table="o" * 48))
    with pytest.raises(SchemaError, match="too long for the name of a partition"):
        asked(partitions._create(long, 10**16, 2 * 10**16))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", b"LATIN1"])  # bytes come from psycopg where it is SQL_ASCII
def test_a_database_of_another_encoding_is_refused(encoding: str | bytes) -> None:
    found = [(True, "0" * len(schema._TABLES), False, False, encoding)]
    with pytest.raises(SchemaError, match=r"encoding is (SQL_ASCII|LATIN1), which cannot keep"):
        asked(_refused(), migration_state=found)


def _refused() -> Operation[None]:
    schema._refuse_what_cannot_work(CATALOG, (yield from schema._find(CATALOG)))


def test_a_connection_to_such_a_database_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE DATABASE fp_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            with (
                psycopg.connect(database, dbname="fp_ascii") as other,
                pytest.raises(SchemaError, match="encoding is SQL_ASCII"),
            ):
                Outbox().migrate(other)
        finally:
            conn.execute("DROP DATABASE fp_ascii WITH (FORCE)")
