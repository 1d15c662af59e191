"""Commands of many steps behind PgBouncer in transaction mode: one program's statements are no other one's."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.cli.program import Result, deliver
from tests.runtime.pgbouncer import pgbouncer

Call = Callable[..., Result]
STEPS = 12
"""More than psycopg sends before it prepares a statement in the session, which the pooler gives to others."""


def test_the_same_command_twice_through_a_pooler(call: Call, store: str) -> None:
    with pgbouncer(store) as pooled:
        for _ in range(3):
            deliver(store, STEPS)
            with psycopg.connect(store) as connection:
                connection.execute(
                    "INSERT INTO outbox_inbox (consumer, message_id, accepted_at)"
                    " SELECT 'billing', n::text, now() - interval '30 days' FROM generate_series(1, %s) AS n",
                    [STEPS],
                )
            words = ("--step", "1", "--older-than")
            purged = call("purge", *words, "0s", store=pooled)
            assert purged == Result(0, f"deleted {STEPS} done messages\n", "")
            forgotten = call("inbox", "purge", "billing", *words, "14d", store=pooled)
            assert forgotten == Result(0, f"forgot {STEPS} entries of billing\n", "")
