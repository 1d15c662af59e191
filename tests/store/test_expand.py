"""One event for several destinations: a row for each, written as the original is closed, and never twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from fencepost import Claimed, NewMessage, Outbox, Routing, Rule
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.store.expand import Expanded, Expansion, close_and_expand
from fencepost.store.fenced import Closed
from tests.store.databases import Migrated
from tests.store.ordered import beside, do, done, ids, take, until_it_waits
from tests.store.rows import OUTBOX, Connection, add, claim_one, expire, row, value

BOTH = ("hook", "kafka")
ALL_WELL = Expanded(Closed(frozenset()))


def copies(db: Connection, queue: str | None = None) -> list[dict[str, Any]]:
    with db.cursor(row_factory=dict_row) as cursor:
        query = "SELECT * FROM outbox WHERE routed AND (%(queue)s::text IS NULL OR queue = %(queue)s) ORDER BY id"
        return cursor.execute(query, {"queue": queue}).fetchall()


def expanded(db: Connection, held: list[Claimed], to: tuple[str, ...] = BOTH) -> Expanded:
    return do(db, close_and_expand(OUTBOX.catalog, [], [Expansion(each, to) for each in held]))


def test_each_destination_gets_the_whole_message_and_the_original_is_closed(db: Connection) -> None:
    text = '{ "b":1,"a" : 1.00, "big": 123456789012345678901234567890 }'
    db.execute(
        "INSERT INTO outbox (event_type, payload, aggregate_type, aggregate_id, headers, content_type, "
        "recovery_policy, created_at, dedupe_key) VALUES ('order.created', %s, 'order', '42', '{\"a\": \"b\"}', "
        "'application/vnd.order+json', 'manual', now() - interval '1 hour', 'd')",
        [text],
    )
    held = claim_one(db)
    assert expanded(db, [held]) == ALL_WELL
    original = row(db, held.id)
    assert (original.status, original.outcome, original.attempts) == ("done", "expanded", 1)
    made = copies(db)
    assert [each["queue"] for each in made] == ["hook", "kafka"]
    same = ("message_id", "event_type", "aggregate_type", "aggregate_id", "content_type", "recovery_policy")
    for each in made:
        assert each["message_id"] == held.message.message_id
        assert value(db, "SELECT payload::text FROM outbox WHERE id = %s", [each["id"]]) == text
        for column in (*same, "created_at"):
            assert each[column] == value(db, f"SELECT {column} FROM outbox WHERE id = %s", [held.id])
        assert (each["status"], each["attempts"], each["lease_version"]) == ("pending", 0, 0)
        assert (each["dedupe_key"], each["headers"]) == (None, {"a": "b"})


def test_bytes_are_the_same_bytes(db: Connection) -> None:
    body = bytes(range(256))
    with db.transaction():
        OUTBOX.enqueue(db, "e", body, content_type="application/x-protobuf")
    expanded(db, [claim_one(db)])
    assert [bytes(each["payload_bytes"]) for each in copies(db)] == [body, body]


def test_a_stale_worker_expands_nothing(db: Connection) -> None:
    add(db)
    stale = claim_one(db)
    expire(db)
    again = claim_one(db)
    before = row(db, stale.id).xmin
    result = expanded(db, [stale])
    assert result.closed.lost == {stale.id}
    assert copies(db) == []
    assert row(db, stale.id).xmin == before
    assert expanded(db, [again]).closed.lost == frozenset()
    assert len(copies(db)) == 2


def test_an_expansion_whose_answer_was_lost_is_repeated_without_a_second_copy(db: Connection) -> None:
    add(db, ordering_key="k")
    add(db)
    held = take(db).claimed
    assert len(held) == 2
    for _ in range(3):
        assert expanded(db, held).closed.lost == frozenset()
    assert len(copies(db)) == 4


def test_nothing_stays_of_an_expansion_that_died(db: Connection, migrated: Migrated) -> None:
    """Stopped between any two of its statements, the original is as it was, and there are no copies."""
    add(db, 2, ordering_key="k")
    held = take(db).claimed
    steps = 0
    while True:
        with psycopg.connect(migrated.url) as dying:
            operation = close_and_expand(OUTBOX.catalog, [], [Expansion(each, BOTH) for each in held])
            execute, sent = driver_for(dying).execute, 0
            try:
                statement = next(operation)
                while sent < steps:
                    statement = operation.send(execute(statement))
                    sent += 1
            except StopIteration:
                break
            finally:
                dying.rollback()
        assert copies(db) == []
        assert {row(db, each.id).status for each in held} == {"processing"}
        steps += 1
    assert steps >= 4
    expanded(db, held)
    assert len(copies(db)) == 4


def test_each_destination_has_the_order_of_the_originals(db: Connection) -> None:
    add(db, 6, ordering_key="k")
    held = take(db).claimed
    expanded(db, held[:2])
    expanded(db, held[2:])
    originals = [each.message.message_id for each in held]
    for queue in BOTH:
        assert [each["message_id"] for each in copies(db, queue)] == originals
        assert [each.message.message_id for each in take(db, queue=queue).claimed] == originals


def test_a_dead_copy_blocks_its_key_in_its_destination_only(db: Connection) -> None:
    add(db, 3, ordering_key="k")
    expanded(db, take(db).claimed)
    hooked = take(db, queue="hook").claimed
    with db.transaction():
        OUTBOX.mark_dead(db, hooked[0], error="no")
        OUTBOX.release(db, hooked[1:])
    assert take(db, queue="hook").claimed == []
    assert done(db, take(db, queue="kafka").claimed) == []
    assert value(db, "SELECT count(*) FROM outbox WHERE queue = 'kafka' AND status = 'done'") == 3


def test_out_of_its_turn_nothing_is_expanded(db: Connection) -> None:
    """The first of a run was lost, the second must not overtake it."""
    add(db, 2, ordering_key="k")
    first, second = take(db).claimed
    expire(db, [first.id])
    (again,) = OUTBOX.claim(db, "w2")
    assert again.id == first.id
    result = expanded(db, [second])
    assert result.closed.out_of_turn == {second.id}
    assert copies(db) == []
    assert row(db, second.id).status == "pending"


def test_parked_messages_come_to_their_turn(db: Connection) -> None:
    add(db, 3, ordering_key="k")
    head = take(db, batch=1).claimed
    assert take(db).parked == 2
    assert expanded(db, head).closed.promoted == 1
    assert [len(take(db).claimed), row(db, head[0].id).status] == [2, "done"]


@pytest.mark.parametrize("key", [None, "k"])
def test_many_destinations_and_many_messages_in_one_step(db: Connection, key: str | None) -> None:
    add(db, 50, ordering_key=key)
    to = tuple(f"d{n}" for n in range(20))
    expanded(db, take(db).claimed, to)
    assert value(db, "SELECT count(*) FROM outbox WHERE routed") == 1_000


def test_numbers_without_a_gap_in_a_destination_that_counts(db: Connection) -> None:
    OUTBOX.set_queue(db, "kafka", "ann", sequenced=True)
    add(db, 2, ordering_key="k")
    add(db)
    held = take(db).claimed
    expire(db, [held[0].id])
    (taken_over,) = OUTBOX.claim(db, "w2")
    expanded(db, held)  # the first is lost, the second out of its turn: only the unordered one is written
    expanded(db, [taken_over])
    expanded(db, take(db).claimed)
    numbers = {queue: [each["key_sequence"] for each in copies(db, queue)] for queue in BOTH}
    assert numbers == {"kafka": [None, 1, 2], "hook": [None] * 3}


def test_a_producers_transaction_in_a_destination_is_never_waited_for(db: Connection, migrated: Migrated) -> None:
    """It writes to a destination's key itself: our copies come after its commit, and others go on meanwhile."""
    add(db, ordering_key="k")
    add(db, ordering_key="other")
    held = take(db).claimed
    with psycopg.connect(migrated.url) as producer:
        Outbox().enqueue(producer, "e", 1, queue="kafka", ordering_key="k")
        result = expanded(db, held)
        assert result.busy == {held[0].id}
        assert [each["ordering_key"] for each in copies(db)] == ["other", "other"]
        waiting = row(db, held[0].id)
        assert (waiting.status, waiting.attempts) == ("pending", 0)
        assert "a producer's transaction holds its ordering key" in (waiting.last_error or "")
        assert waiting.due_in < 1
        producer.commit()
    db.execute("UPDATE outbox SET available_at = now() - interval '1 s' WHERE id = %s", [held[0].id])
    assert expanded(db, take(db).claimed) == ALL_WELL
    in_order = db.execute("SELECT routed FROM outbox WHERE queue = 'kafka' AND ordering_key = 'k' ORDER BY id")
    assert [each for (each,) in in_order] == [False, True]


def test_what_stands_behind_one_that_waits_for_a_producer_waits_too_and_keeps_its_attempt(
    db: Connection, migrated: Migrated
) -> None:
    """It was closed out of its turn otherwise, again and again, until its attempts were used up."""
    add(db, 4, ordering_key="k")
    add(db, ordering_key="other")
    held = take(db).claimed
    to = (("hook",), BOTH, ("hook",), ("hook",), ("hook",))
    with psycopg.connect(migrated.url) as producer:
        Outbox().enqueue(producer, "e", 1, queue="kafka", ordering_key="k")
        expansions = [Expansion(each, names) for each, names in zip(held, to, strict=True)]
        result = do(db, close_and_expand(OUTBOX.catalog, [], expansions[::-1]))
    assert result == Expanded(Closed(frozenset()), frozenset(ids(held[1:4])))
    assert [row(db, each.id).status for each in held] == ["done", "pending", "pending", "pending", "done"]
    assert [row(db, each.id).attempts for each in held] == [1, 0, 0, 0, 1]
    assert len(copies(db)) == 2


def test_a_producer_waits_for_an_expansion_of_its_key(db: Connection, migrated: Migrated) -> None:
    """Ids follow commits also this way round."""
    add(db, ordering_key="k")
    held = take(db).claimed
    with psycopg.connect(migrated.url) as worker, beside(migrated.url) as producer:
        run(
            close_and_expand(OUTBOX.catalog, [], [Expansion(each, ("kafka",)) for each in held]),
            driver_for(worker).execute,
        )
        enqueued = producer.begin(lambda conn: Outbox().enqueue(conn, "e", 1, queue="kafka", ordering_key="k").id)
        until_it_waits(db, producer)
        worker.commit()
        mine = enqueued.result(20)
    assert mine > copies(db)[0]["id"]


def test_a_copy_is_claimed_as_routed_and_a_plain_message_is_not(db: Connection) -> None:
    add(db)
    plain = claim_one(db)
    expanded(db, [plain])
    assert [plain.routed, claim_one(db, queues=["hook"]).routed] == [False, True]


def test_ids_of_an_expansion(db: Connection) -> None:
    add(db, 3)
    held = take(db).claimed
    expanded(db, held)
    assert [each["message_id"] for each in copies(db, "hook")] == [each.message.message_id for each in held]
    assert ids(take(db, queue="hook").claimed) == [each["id"] for each in copies(db, "hook")]


def test_the_same_at_enqueue_where_the_producer_knows_the_routes(db: Connection) -> None:
    outbox = Outbox(routing=Routing([Rule("order.*", to=BOTH), Rule("one", to="kafka")]))
    with db.transaction():
        receipt = outbox.enqueue(db, "order.created", {"n": 1}, ordering_key="k", dedupe_key="d")
        repeat = outbox.enqueue(db, "order.created", {"n": 1}, ordering_key="k", dedupe_key="d")
        single = outbox.enqueue(db, "one", 1)
        plain = outbox.enqueue(db, "else", 1)
        many = outbox.enqueue_many(
            db, [NewMessage(event_type=kind, payload=n) for n, kind in enumerate(("order.a", "else", "order.b"))]
        )
    made = copies(db)
    assert [(each["queue"], each["event_type"]) for each in made] == [
        *(("hook", "order.created"), ("kafka", "order.created"), ("kafka", "one")),
        *(("hook", "order.a"), ("kafka", "order.a"), ("hook", "order.b"), ("kafka", "order.b")),
    ]
    assert receipt.destinations == {"hook": made[0]["id"], "kafka": made[1]["id"]}
    assert (receipt.id, receipt.created, repeat.created) == (made[0]["id"], True, False)
    assert repeat.destinations == receipt.destinations
    assert made[0]["message_id"] == made[1]["message_id"] == receipt.message_id
    assert (single.destinations, plain.destinations) == ({}, {})
    assert [len(each.destinations) for each in many] == [2, 0, 2]
    assert value(db, "SELECT queue FROM outbox WHERE id = %s", [plain.id]) == "default"
