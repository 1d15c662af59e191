"""``purge``: delete done messages past their retention, a committed step at a time."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.cli.program import Result, bury, deliver, enqueue, statuses

Call = Callable[..., Result]


def test_deletes_old_done_messages_only(call: Call, store: str) -> None:
    deliver(store, 3)
    with psycopg.connect(store) as connection:
        connection.execute(
            "UPDATE outbox SET done_at = now() - interval '8 days', created_at = now() - interval '9 days'"
        )
    deliver(store)
    bury(store)
    enqueue(store)
    assert call("purge", "--older-than", "7d", store=store) == Result(0, "deleted 3 done messages\n", "")
    assert statuses(store) == {4: "done", 5: "dead", 6: "pending"}
    assert call("purge", "--older-than", "7d", "--json", store=store).json == {"deleted": 0}


def test_commits_each_step(call: Call, store: str) -> None:
    deliver(store, 5)
    with psycopg.connect(store) as connection:
        connection.execute("CREATE TABLE step (transaction xid8, messages int)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO step VALUES (pg_current_xact_id(), 1); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER note AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION note()")
    assert call("purge", "--older-than", "0s", "--step", "2", store=store).out == "deleted 5 done messages\n"
    with psycopg.connect(store) as connection:
        steps = connection.execute("SELECT sum(messages) FROM step GROUP BY transaction ORDER BY 1").fetchall()
    assert steps == [(1,), (2,), (2,)]
