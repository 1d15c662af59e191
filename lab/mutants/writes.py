"""Sabotages of the SQL by which holders and operators write, and of orders, purges and producers."""

from __future__ import annotations

from lab.mutants.mutant import SQL, of

_ORDER = "store/test_order_claims store/test_order_traps store/test_order_finalize store/test_order_machine"

MUTANTS = [
    *of(
        f"{SQL}/mark_done_ordered.sql",
        f"store/test_order_finalize {_ORDER}",
        (
            "done-out-of-turn",
            "an ordered message is closed before an earlier one",
            "AND o.place = m.place",
            "AND o.place >= m.place",
        ),
        (
            "done-unlocked",
            "the rows of an ordered finalize are not locked before their turn is worked out",
            "    ORDER BY id\n    FOR UPDATE\n",
            "    ORDER BY id\n",
        ),
        (
            "done-all-keys-one",
            "the turn is worked out over all keys together",
            "PARTITION BY queue, ordering_key ORDER BY id",
            "ORDER BY id",
        ),
    ),
    *of(
        f"{SQL}/release.sql",
        "store/test_fence store/test_claims store/test_state_machine",
        ("release-below-zero", "a release refunds below 0", "greatest(0, attempts - 1)", "attempts - 1"),
        (
            "release-always-refunds",
            "a release refunds though told not to",
            "CASE WHEN %(refund_attempt)s::boolean THEN",
            "CASE WHEN %(refund_attempt)s::boolean OR true THEN",
        ),
    ),
    *of(
        f"{SQL}/reschedule.sql",
        "store/test_fence store/test_claims store/test_state_machine",
        (
            "retry-refunds",
            "a retry refunds its attempt",
            "CASE WHEN %(refund_attempt)s::boolean THEN",
            "CASE WHEN %(refund_attempt)s::boolean OR true THEN",
        ),
        ("retry-at-once", "a retry is due at once", "* interval '1 second',", "* interval '0 seconds',"),
        (
            "retry-raises-token",
            "a retry raises the token, and cannot be repeated",
            "    lease_until = NULL,\n",
            "    lease_until = NULL, lease_version = lease_version + 1,\n",
        ),
    ),
    *of(
        f"{SQL}/finalized.sql",
        "store/test_fence store/test_state_machine",
        (
            "repeat-any-outcome",
            "a repeated finalize takes any outcome for its own",
            " AND outcome IS NOT DISTINCT FROM %(outcome)s::text",
            "",
        ),
        (
            "repeat-any-token",
            "a repeated finalize takes another one's work for its own",
            " AND lease_version = %(token)s::bigint",
            "",
        ),
        (
            "repeat-any-message",
            "a repeated finalize takes what another message came to for its own",
            "  AND {same_message}\n",
            "",
        ),
    ),
    *of(
        f"{SQL}/heartbeat.sql",
        "store/test_heartbeat store/test_fence",
        ("heartbeat-waits", "a heartbeat waits for a finalize", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        (
            "heartbeat-short",
            "a heartbeat extends by half a lease",
            "%(lease)s::float8 *",
            "%(lease)s::float8 / 2 *",
        ),
    ),
    *of(
        f"{SQL}/promote.sql",
        _ORDER,
        ("promote-none", "nobody promotes", "WHERE h.status = 'blocked'", "WHERE h.status = 'none'"),
        (
            "promote-last",
            "the last parked message of a key is promoted, not the first",
            "        ORDER BY ordering_key, id\n",
            "        ORDER BY ordering_key DESC, id DESC\n",
        ),
        (
            "promote-late",
            "what is promoted is due in an hour",
            "available_at = least(created_at, statement_timestamp())",
            "available_at = statement_timestamp() + interval '1 hour'",
        ),
    ),
    *of(
        f"{SQL}/lock_keys.sql",
        "store/test_order_traps store/test_order_enqueue store/test_order_finalize store/test_deadlocks store/test_order_machine",
        ("keys-unlocked", "no locks of ordering keys", "pg_advisory_xact_lock(n)::text", "n::text"),
        (
            "keys-unsorted",
            "the locks of keys are taken in any order",
            "ORDER BY n OFFSET 0",
            "ORDER BY pg_catalog.random() OFFSET 0",
        ),
        ("keys-one-kind", "finalizers wait for producers", "%(seed)s::bigint) AS n", "0 * %(seed)s::bigint) AS n"),
        ("keys-without-queue", "keys of several queues share a lock", "|| k.queue || ' ' ||", "|| ' ' ||"),
    ),
    *of(
        f"{SQL}/dead_retry.sql",
        "store/test_operators store/test_transitions store/test_fence",
        (
            "operator-keeps-token",
            "an operator's retry leaves the token as it is",
            "attempts = 0, reclaim_count = 0, lease_version = {next_token}",
            "attempts = 0, reclaim_count = 0",
        ),
        (
            "operator-retry-cuts-in",
            "what an operator retries stands in front of what has become due since",
            "available_at = statement_timestamp(),\n        attempts = 0",
            "available_at = o.created_at,\n        attempts = 0",
        ),
        (
            "operator-keeps-attempts",
            "an operator's retry keeps the attempts",
            "attempts = 0, reclaim_count = 0,",
            "reclaim_count = 0,",
        ),
        (
            "operator-keeps-suspicion",
            "an operator's retry keeps the count of reclaims",
            "attempts = 0, reclaim_count = 0,",
            "attempts = 0,",
        ),
    ),
    *of(
        f"{SQL}/dead_skip.sql",
        "store/test_operators store/test_transitions store/test_fence",
        (
            "skip-keeps-token",
            "an operator's skip leaves the token as it is",
            "done_at = statement_timestamp(),\n        lease_version = {next_token}\n",
            "done_at = statement_timestamp()\n",
        ),
        (
            "skip-is-delivered",
            "a skipped message stands as delivered",
            "outcome = 'skipped'",
            "outcome = 'delivered'",
        ),
    ),
    *of(
        f"{SQL}/purge.sql",
        "store/test_purge",
        (
            "purge-unbounded",
            "a purge ignores its limit",
            "            LIMIT %(limit)s::int\n        ))",
            "        ))",
        ),
        (
            "purge-together",
            "two purges run at once",
            "pg_catalog.pg_try_advisory_xact_lock({purge_lock}) AS is_ours",
            "{purge_lock} IS NOT NULL AS is_ours",
        ),
    ),
    *of(
        f"{SQL}/enqueue_many.sql",
        "store/test_claims store/test_order_enqueue store/test_order_numbers",
        (
            "ids-backwards",
            "ids are drawn in the reverse of the caller's order",
            "ORDER BY d.position\n",
            "ORDER BY d.position DESC\n",
        ),
    ),
    *of(
        f"{SQL}/expand.sql",
        "store/test_expand",
        (
            "expand-new-identity",
            "each destination gets a message id of its own",
            "SELECT o.message_id, d.queue",
            "SELECT gen_random_uuid(), d.queue",
        ),
        (
            "expand-unrouted",
            "the messages of destinations are routed again",
            "o.created_at, true\n",
            "o.created_at, false\n",
        ),
    ),
    *of(
        f"{SQL}/purge.sql",
        "store/test_purge",
        ("purge-dead", "a purge deletes dead messages", "status = 'done'", "status IN ('done', 'dead')"),
        (
            "purge-young",
            "a purge keeps half of the retention",
            "done_at < statement_timestamp() - %(older_than)s::float8 *",
            "done_at < statement_timestamp() - %(older_than)s::float8 / 2 *",
        ),
        places=2,
    ),
    *of(
        f"{SQL}/release.sql",
        "store/test_order_traps",
        (
            "release-blocked",
            "a released message is parked by nobody's claim",
            "SET status = 'pending',\n",
            "SET status = CASE WHEN ordering_key IS NULL THEN 'pending' ELSE 'blocked' END,\n    available_at = CASE WHEN ordering_key IS NULL THEN available_at ELSE {far} END,\n",
        ),
    ),
]
