"""Violations of what arrives: I1, I6, I8, I11, and of clean-up: I16."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.lab.case import Case, planted
from tests.lab.small_run import OUTBOX

WITHOUT_TRIGGER = (
    "ALTER TABLE outbox DISABLE TRIGGER USER; DELETE FROM outbox WHERE id = {};"
    "ALTER TABLE outbox ENABLE TRIGGER USER"
)


@planted("I1")
def a_row_is_gone_behind_everybody(case: Case) -> None:
    case.sql(WITHOUT_TRIGGER.format(case.marks["late"][0]))


@planted("I1")
def a_row_came_behind_everybody(case: Case) -> None:
    case.sql(
        "ALTER TABLE outbox DISABLE TRIGGER USER; INSERT INTO outbox (queue, event_type, payload)"
        " VALUES ('x', 'order.created', '{}'); ALTER TABLE outbox ENABLE TRIGGER USER"
    )


@planted("I1")
def an_acknowledged_commit_is_gone(case: Case) -> None:
    case.add("producer", "commit", message_ids=[str(uuid4())])


@planted("I1")
def a_committed_message_was_never_written(case: Case) -> None:
    case.sql("INSERT INTO lab.business (message_id) VALUES (gen_random_uuid())")


@planted("I1")
def a_delivered_one_never_arrived(case: Case) -> None:
    case.drop(case.find("accepted", message_id=case.of("late")))


@planted("I1")
def one_that_was_cleaned_up_never_arrived(case: Case) -> None:
    case.drop(case.find("accepted", message_id=case.of("plain")))


@planted("I1")
def a_delivered_one_arrives_once_it_is_done(case: Case) -> None:
    (end,) = case.find("publish_end", message_id=case.of("late"))
    case.change(case.find("accepted", message_id=case.of("late")), at=end.at + 3_000_000_000)


@planted("I1")
def a_publish_is_told_as_delivered_and_was_never_acknowledged(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", recovery="verify")  # it is done by what the receiver says
    held = case.run.claim("x")
    case.run.publish(held, arrives=False)
    case.run.done(held)
    about: dict[str, Any] = {"message_id": case.run.message_ids[row_id], "token": 1, "queue": "x"}
    (start,) = case.played("publish_start")
    case.add("receiver", "accepted", **about, payload=start["payload"], acknowledged=False)


@planted("I1")
def a_delivered_one_was_never_acknowledged(case: Case) -> None:
    case.change(case.find("accepted", message_id=case.of("late")), acknowledged=False)


@planted("I1")
def an_event_never_arrives_at_one_of_its_destinations(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    case.sql(
        "INSERT INTO outbox (message_id, queue, event_type, payload, headers)"
        " SELECT message_id, 'y', event_type, payload, headers FROM outbox WHERE id = %s",
        row_id,
    )
    case.run.deliver("x")
    held = case.run.claim("y")
    case.run.publish(held, arrives=False)
    case.run.done(held)


@planted("I1")
def a_delivered_one_is_buried(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.publish(held)
    OUTBOX.mark_dead(case.db, held, "never")


@planted("I1")
def a_failed_one_is_buried_for_good(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.publish(held, result="retryable", arrives=False)
    OUTBOX.mark_dead(case.db, held, "never")


@planted("I1")
def one_is_buried_that_nobody_published(case: Case) -> None:
    case.run.enqueue("x")
    OUTBOX.mark_dead(case.db, case.run.claim("x"), "never")


@planted("I1")
def one_is_closed_that_nobody_published(case: Case) -> None:
    case.run.enqueue("x")
    case.run.done(case.run.claim("x"))


@planted("I1")
def a_key_sleeps_since_nobody_promotes(case: Case) -> None:
    case.sql(
        "WITH changed AS (UPDATE outbox SET status = 'done', outcome = 'skipped', done_at = statement_timestamp(),"
        " lease_version = lease_version + 1 WHERE id = %s RETURNING id, message_id)"
        " INSERT INTO outbox_audit (actor, action, outbox_id, message_id, before)"
        " SELECT 'ann', 'skip', id, message_id, '{}' FROM changed",
        case.marks["stuck"][0],
    )


@planted("I1", "I13")
def one_is_left_lying(case: Case) -> None:
    case.run.enqueue("x")
    case.drained_in = case.ends_in = 60.0


@planted("I6")
def a_rolled_back_one_is_published(case: Case) -> None:
    message_id, row_id = case.of("undone"), case.marks["undone"][0]
    about: dict[str, Any] = {"message_id": message_id, "id": row_id, "token": 1}
    (intent,) = case.find("enqueue", message_id=message_id)
    digests = {name: intent[name] for name in ("payload", "headers")}
    case.add("w1", "publish_start", **about, **digests, queue="undone", attempt=1, owner="w1")
    case.add("w1", "publish_end", **about, result="retryable")


@planted("I6")
def one_is_published_before_it_is_enqueued(case: Case) -> None:
    (start,) = case.find("publish_start", message_id=case.of("late"))
    case.change(case.find("enqueue", message_id=case.of("late")), at=start.at + 1)


@planted("I6")
def one_arrives_before_it_is_enqueued(case: Case) -> None:
    (intent,) = case.find("enqueue", message_id=case.of("late"))
    case.change(case.find("accepted", message_id=case.of("late")), at=intent.at - 3_000_000_000)


@planted("I6")
def a_rolled_back_one_has_an_effect(case: Case) -> None:
    _take_effect(case, case.of("undone"))


@planted("I6")
def something_has_an_effect_that_nobody_enqueued(case: Case) -> None:
    _take_effect(case, str(uuid4()))


def _take_effect(case: Case, message_id: str) -> None:
    case.sql("INSERT INTO lab.effect (consumer, message_id, token) VALUES ('billing', %s, 1)", message_id)
    case.sql("INSERT INTO outbox_inbox (consumer, message_id) VALUES ('billing', %s)", message_id)
    case.add("consumer", "inbox", consumer="billing", message_id=message_id, token=1, result="accepted")


@planted("I6")
def one_that_was_cleaned_up_is_written_anew(case: Case) -> None:
    case.sql(
        "INSERT INTO outbox (message_id, queue, event_type, payload) VALUES (%s, 'plain', 'order.created', %s)",
        *(case.of("plain"), '{"of":"plain"}'),
    )


@planted("I6")
def a_rolled_back_one_arrives(case: Case) -> None:
    (intent,) = case.find("enqueue", message_id=case.of("undone"))
    case.add("receiver", "accepted", message_id=intent["message_id"], token=1, payload=intent["payload"])


@planted("I6")
def one_of_a_rolled_back_savepoint_stays(case: Case) -> None:
    case.sql(
        "INSERT INTO outbox (message_id, queue, event_type, payload) VALUES (%s, 'x', 'order.created', %s)",
        *(case.of("undone", 1), '{"of":"undone"}'),
    )


@planted("I6")
def an_event_is_written_beside_its_transaction(case: Case) -> None:
    with case.db.transaction():
        _, message_id = case.run.insert("x")
    case.sql("DELETE FROM lab.business WHERE message_id = %s", message_id)


@planted("I6")
def something_arrives_that_nobody_enqueued(case: Case) -> None:
    case.add("receiver", "accepted", message_id=str(uuid4()), token=1, payload="0")


@planted("I6")
def a_refused_one_arrives(case: Case) -> None:
    (refused,) = case.find("refused")
    case.add("receiver", "accepted", message_id=refused["message_id"], token=1, payload="0")


@planted("I8")
def an_effect_is_made_twice(case: Case) -> None:
    case.sql(
        "INSERT INTO lab.effect (consumer, message_id, token) SELECT consumer, message_id, token FROM lab.effect"
    )


@planted("I8")
def an_effect_is_made_beside_the_inbox(case: Case) -> None:
    case.sql("DELETE FROM outbox_inbox")


@planted("I8")
def a_rolled_back_effect_leaves_its_inbox_entry(case: Case) -> None:
    case.sql("INSERT INTO outbox_inbox (consumer, message_id) VALUES ('billing', 'x')")


@planted("I8")
def an_acknowledged_effect_is_gone(case: Case) -> None:
    case.sql("DELETE FROM lab.effect; DELETE FROM outbox_inbox")


@planted("I8")
def a_newer_token_is_refused(case: Case) -> None:
    case.change(case.find("inbox", result="stale"), token=7)


@planted("I8")
def an_effect_is_told_as_new_twice(case: Case) -> None:
    case.again(case.find("inbox", result="accepted"))


@planted("I8")
def a_repeat_is_told_of_what_had_no_effect(case: Case) -> None:
    case.add("consumer", "inbox", consumer="billing", message_id=case.of("late"), token=1, result="repeat")


@planted("I11")
def one_is_enqueued_with_two_contents(case: Case) -> None:
    (line,) = case.find("enqueue", message_id=case.of("late"))
    case.add(line.process, "enqueue", at=line.at - 1, **line.fields | {"payload": "0"})


@planted("I11")
def a_payload_is_published_in_other_bytes(case: Case) -> None:
    case.change(case.find("publish_start", message_id=case.of("late")), payload="0")


@planted("I11")
def a_payload_of_which_no_producer_tells_arrives_in_other_bytes(case: Case) -> None:
    case.drop(case.find("enqueue", message_id=case.of("late")))
    case.change(case.find("accepted", message_id=case.of("late")), payload="0")


@planted("I11")
def a_header_is_lost_on_an_attempt(case: Case) -> None:
    case.change(case.find("publish_start", message_id=case.of("killed"), token=2), headers="0")


@planted("I11")
def a_payload_arrives_in_other_bytes(case: Case) -> None:
    case.change(case.find("accepted", message_id=case.of("late")), payload="0")


@planted("I11")
def a_stored_payload_is_written_anew(case: Case) -> None:
    case.run.enqueue("x")
    case.sql("UPDATE outbox SET payload = '{\"of\": \"x\"}' WHERE queue = 'x'")


@planted("I11")
def a_payload_is_stored_in_other_bytes(case: Case) -> None:
    (line,) = case.find("enqueue", message_id=case.of("poison", 1))
    for kind in ("enqueue", "publish_start", "accepted"):  # all agree, but for the store
        case.change(case.find(kind, message_id=line["message_id"]), payload="0")


@planted("I16")
def done_rows_are_deleted_too_early(case: Case) -> None:
    case.change(case.find("campaign"), retention=60)


@planted("I16")
def rows_are_deleted_without_any_retention(case: Case) -> None:
    case.change(case.find("campaign"), retention=None)


@planted("I16")
def an_undelivered_one_is_deleted(case: Case) -> None:
    case.run.enqueue("x")
    case.sql("DELETE FROM outbox WHERE queue = 'x'")


@planted("I16")
def a_dead_one_is_deleted(case: Case) -> None:
    case.sql("DELETE FROM outbox WHERE id = %s", case.marks["poison"][0])


@planted("I16")
def a_step_is_too_large(case: Case) -> None:
    case.change(case.find("campaign"), purge_limit=1)


@planted("I16", "I1", "I4")
def the_outbox_is_emptied(case: Case) -> None:
    case.sql("TRUNCATE outbox")


@planted("I13")
def others_use_up_the_attempts_of_a_neighbour(case: Case) -> None:
    case.run.enqueue("x")
    for _ in range(3):
        case.run.until_expired(case.run.claim("x", "w2"))
    case.sql(
        "UPDATE outbox SET status = 'dead', outcome = 'crashed', dead_at = statement_timestamp(),"
        " lease_until = NULL, available_at = '9999-12-31T00:00Z', lease_version = lease_version + 1"
        " WHERE queue = 'x'"
    )


@planted("I13")
def poison_takes_another_one_with_it(case: Case) -> None:
    (fault,) = case.find("fault", fault="poison", process="p2")
    neighbour = {"message_id": case.of("poison", 1), "token": 2}
    case.change(case.find("publish_start", **neighbour), at=fault.at - 1, process="p2")
    case.change(case.find("publish_end", **neighbour), at=fault.at + 1, process="p2")


@planted("I13")
def one_waits_behind_a_slow_one(case: Case) -> None:
    case.run.enqueue("slow", bad="slow")
    case.run.publish(case.run.claim("slow", "w1"), "w1", result=None)
    case.run.enqueue("x")
    case.add("conductor", "exit", of="w2", pid=1, code=0)
    case.drained_in, case.ends_in = None, 10.0
