"""Sabotages of the SQL of claims: of normal messages, of crash suspects, and of the reaper."""

from __future__ import annotations

from lab.mutants.mutant import SQL, of

_CLAIMS = "store/test_claims store/test_order_claims store/test_state_machine"
_ORDER = "store/test_order_claims store/test_order_traps store/test_order_machine store/test_order_finalize"

MUTANTS = [
    *of(
        f"{SQL}/fragments/message_fence.sql",
        "store/test_fence store/test_fence_files",
        (
            "fence-no-token",
            "the fence forgets the token",
            "lease_version = %(token)s::bigint AND status",
            "status",
        ),
        ("fence-no-status", "the fence forgets the status", " AND status = 'processing'", ""),
        (
            "fence-older-token",
            "the fence lets older tokens pass",
            "lease_version = %(token)s",
            "lease_version >= %(token)s",
        ),
    ),
    *of(
        f"{SQL}/fragments/message_fence_each.sql",
        "store/test_order_finalize store/test_fence_files store/test_fence",
        (
            "fence-each-no-status",
            "the fence of an ordered finalize forgets the status",
            " AND status = 'processing'",
            "",
        ),
        (
            "fence-each-any-message",
            "the fence of an ordered finalize lets the holder of another message pass",
            "message_id = (SELECT %(message_ids)s::text::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]",
            "message_id IS NOT NULL",
        ),
    ),
    *of(
        f"{SQL}/fragments/same_message.sql",
        "store/test_fence store/test_fence_files",
        (
            "fence-any-message",
            "the fence lets the holder of another message with the same id and token pass",
            "message_id = ANY ((SELECT %(message_ids)s::text::uuid[])::uuid[])",
            "message_id IS NOT NULL",
        ),
    ),
    *of(
        f"{SQL}/fragments/next_token.sql",
        "store/test_claims store/test_impossible_rows store/test_fence",
        (
            "token-stands",
            "no token increment at a claim, a reap and an operator's action",
            "o.lease_version + 1",
            "o.lease_version",
        ),
        (
            "token-unlimited",
            "a token at the end of its range grows on",
            "least(o.lease_version + 1, 4611686018427387904)",
            "o.lease_version + 1",
        ),
    ),
    *of(
        f"{SQL}/fragments/claim_set.sql",
        "store/test_claims store/test_reap store/test_order_claims store/test_state_machine store/test_impossible_rows",
        ("claim-uncharged", "a claim charges no attempt", "THEN o.attempts + 1 ELSE", "THEN o.attempts ELSE"),
        (
            "takeover-uncounted",
            "a row taken over is no crash suspect",
            "WHEN o.status = 'processing' THEN 1 ELSE 0",
            "WHEN o.status = 'processing' THEN 0 ELSE 0",
        ),
        (
            "lease-doubled",
            "a lease is twice as long as asked for",
            "%(lease)s::float8 * interval '1 second'",
            "%(lease)s::float8 * interval '2 seconds'",
        ),
        (
            "exhausted-is-due",
            "a message over the limit is dead and stays due",
            "THEN {far}\n",
            "THEN o.available_at\n",
        ),
        (
            "parked-keeps-far",
            "a parked message that is claimed stays at the far instant",
            "WHEN o.status = 'blocked' THEN least(o.created_at, statement_timestamp())\n",
            "WHEN o.status = 'none' THEN o.created_at\n",
        ),
    ),
    *of(
        f"{SQL}/fragments/claimable.sql",
        "store/test_claims store/test_impossible_rows",
        (
            "limit-one-late",
            "a claim exceeds the limit of attempts by one",
            "o.attempts < %(max_attempts)s",
            "o.attempts <= %(max_attempts)s",
        ),
    ),
    *of(
        f"{SQL}/fragments/is_paused.sql",
        "store/test_queues store/test_breaker",
        ("pause-ignored", "a paused queue is served", "(q.paused OR (", "(("),
        (
            "breaker-ignored",
            "a queue with an open breaker is served",
            "(q.breaker_opened_at IS NOT NULL AND NOT %(is_probe)s::boolean)",
            "false",
        ),
    ),
    *of(
        f"{SQL}/claim.sql",
        _CLAIMS,
        (
            "claim-leased",
            "a normal claim takes leased rows",
            "      AND lease_until IS NULL\n      AND status = 'pending'\n",
            "      AND status <> 'dead'\n",
        ),
        (
            "claim-suspects-too",
            "a normal claim takes crash suspects",
            "      AND reclaim_count = 0\n      AND NOT {is_paused}",
            "      AND NOT {is_paused}",
        ),
        (
            "claim-early",
            "a claim takes what is not due yet",
            "      AND available_at <= statement_timestamp()\n      AND lease_until IS NULL\n      AND status = 'pending'",
            "      AND lease_until IS NULL\n      AND status = 'pending'",
        ),
        (
            "claim-waits",
            "a claim waits for locked rows instead of passing them by",
            "    LIMIT %(batch)s::int\n    FOR UPDATE SKIP LOCKED\n",
            "    LIMIT %(batch)s::int\n    FOR UPDATE\n",
        ),
        (
            "claim-unlocked",
            "a claim does not lock what it chooses",
            "    LIMIT %(batch)s::int\n    FOR UPDATE SKIP LOCKED\n",
            "    LIMIT %(batch)s::int\n",
        ),
        (
            "claim-by-instant-only",
            "a claim takes the youngest first",
            "    ORDER BY available_at, id\n    LIMIT %(batch)s",
            "    ORDER BY available_at DESC, id DESC\n    LIMIT %(batch)s",
        ),
        (
            "batch-over",
            "a claim takes unordered messages past its batch",
            "WHERE ordering_key IS NULL LIMIT %(batch)s::int - (SELECT count(*) FROM run))",
            "WHERE ordering_key IS NULL)",
        ),
    ),
    *of(
        f"{SQL}/claim.sql",
        _ORDER,
        (
            "run-with-gap",
            "the run of a key may have a gap",
            "WHERE nth = place AND over_before = 0",
            "WHERE over_before = 0",
        ),
        (
            "run-past-dead",
            "a run goes on behind a message that dies in this claim",
            "WHERE nth = place AND over_before = 0",
            "WHERE nth = place",
        ),
        ("run-unlimited", "a run ignores its limit", " AND place <= %(longest_run)s::int\n", "\n"),
        (
            "more-suspects",
            "a run takes crash suspects along",
            "AND lease_until IS NULL AND reclaim_count = 0\n      AND (status = 'blocked'",
            "AND lease_until IS NULL\n      AND (status = 'blocked'",
        ),
        (
            "more-not-due",
            "a run takes deferred messages along",
            "(status = 'pending' AND available_at <= statement_timestamp()))",
            "status = 'pending')",
        ),
        (
            "park-without-head",
            "a claim parks without holding the lock of the head",
            "OR %(park_behind_leased)s::boolean)\n    ORDER BY id\n    FOR UPDATE SKIP LOCKED\n",
            "OR %(park_behind_leased)s::boolean)\n    ORDER BY id\n",
        ),
        ("park-behind-done", "a claim parks behind a head that is done", "      AND status <> 'done'\n", ""),
        (
            "park-always",
            "a claim parks behind a head that is being published, though told not to",
            "lease_until < statement_timestamp() OR %(park_behind_leased)s::boolean)",
            "true)",
        ),
        (
            "park-keeps-due",
            "what is parked stays due and blocked",
            "SET status = 'blocked', available_at = {far}",
            "SET status = 'pending', available_at = {far}",
        ),
        (
            "park-few",
            "parking reaches the candidates only",
            "        UNION ALL\n        SELECT id FROM behind\n",
            "",
        ),
        (
            "park-the-head",
            "a claim parks the head as well",
            "JOIN obstacle USING (ordering_key) WHERE due.id <> obstacle.id",
            "JOIN obstacle USING (ordering_key) WHERE true",
        ),
        (
            "waiting-unsaid",
            "a claim does not say what waits for a head in other hands",
            "(SELECT coalesce(sum(due), 0) FROM k",
            "(SELECT 0 * coalesce(sum(due), 0) FROM k",
        ),
    ),
    *of(
        f"{SQL}/claim_suspects.sql",
        "store/test_claims store/test_order_claims store/test_reap store/test_state_machine",
        (
            "suspects-out-of-turn",
            "a suspect that is not the head of its key is taken",
            "(ordering_key IS NULL OR id = (",
            "(true OR id = (",
        ),
        (
            "suspects-most-first",
            "what was reclaimed most often comes first",
            "    ORDER BY reclaim_count, available_at, id\n    LIMIT %(batch)s::int + 64",
            "    ORDER BY reclaim_count DESC, available_at, id\n    LIMIT %(batch)s::int",
        ),
        (
            "suspects-no-spare",
            "a batch of suspects may spend the last attempts",
            "%(max_attempts)s::int - %(spare_attempts)s::int",
            "%(max_attempts)s::int",
        ),
        (
            "suspects-unlimited-reclaims",
            "the limit of reclaims is one too high",
            "AND reclaim_count <= %(max_reclaims)s::int))",
            "AND reclaim_count <= %(max_reclaims)s::int + 1))",
        ),
        (
            "suspects-wait",
            "a claim of suspects waits for locked rows",
            "    LIMIT %(batch)s::int\n    FOR UPDATE SKIP LOCKED",
            "    LIMIT %(batch)s::int\n    FOR UPDATE",
        ),
    ),
    *of(
        f"{SQL}/reap.sql",
        "store/test_reap store/test_state_machine store/test_transitions",
        ("reap-keeps-token", "a reap leaves the token as it is", "    lease_version = {next_token},\n", ""),
        (
            "reap-auto-unknown",
            "a crash of a message under recovery auto is an unknown outcome",
            "WHEN o.recovery_policy = 'auto' THEN 'crashed'",
            "WHEN o.recovery_policy = 'auto' THEN 'unknown_outcome'",
        ),
        (
            "reap-waits",
            "a reap waits for a finalize",
            "    ORDER BY id\n    FOR UPDATE SKIP LOCKED",
            "    ORDER BY id\n    FOR UPDATE",
        ),
        ("reap-unbounded", "a reap ignores its limit", "            LIMIT %(limit)s::int\n", ""),
    ),
    *of(
        f"{SQL}/claim_suspects.sql",
        "store/test_claims store/test_reap store/test_state_machine",
        (
            "suspects-live",
            "suspects are taken before their lease has ended",
            " AND lease_until < statement_timestamp() AND",
            " AND",
        ),
        (
            "suspects-manual",
            "suspects under recovery manual are taken over",
            "lease_until < statement_timestamp() AND recovery_policy <> 'manual'",
            "lease_until < statement_timestamp()",
        ),
        places=2,
    ),
    *of(
        f"{SQL}/reap.sql",
        "store/test_reap store/test_state_machine store/test_transitions",
        (
            "reap-live",
            "a reap buries what is still leased",
            "lease_until < statement_timestamp()",
            "lease_until IS NOT NULL",
        ),
        (
            "reap-with-attempts",
            "a reap buries what has attempts left",
            "(attempts >= {attempts_limit} OR recovery_policy = 'manual')",
            "true",
        ),
        (
            "reap-manual-repeats",
            "a reap leaves a message under recovery manual lying",
            " OR recovery_policy = 'manual')",
            ")",
        ),
        places=2,
    ),
]
