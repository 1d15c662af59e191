"""Sabotages of what stands beside claims and finalizes: ends, breakers, inbox, ledger, partitions, operators' targets."""

from __future__ import annotations

from lab.mutants.mutant import SQL, of

MUTANTS = [
    *of(
        "store/queues.py",
        "store/test_queues",
        ("pause-overrides", "who was told before a resume that all is gone pauses again", " or is_newer", ""),
        (
            "pause-never-first",
            "a queue that nobody ever changed cannot be paused by what was seen before its row was made",
            "before.changed_by is not None and age",
            "age",
        ),
    ),
    *of(
        f"{SQL}/mark_dead.sql",
        "store/test_fence store/test_transitions",
        ("dead-stays-due", "a dead message stays due", "    available_at = {far},\n", ""),
        (
            "dead-error-of-first",
            "all of a burial get the error of the first",
            "pg_catalog.array_position(%(ids)s::bigint[], id)",
            "1",
        ),
    ),
    *of(
        f"{SQL}/held.sql",
        "store/test_heartbeat store/test_fence",
        ("held-by-anybody", "a row that somebody else holds counts as ours", " AND {message_fence}", ""),
    ),
    *of(
        f"{SQL}/job_held.sql",
        "store/test_jobs",
        ("job-held-by-anybody", "a job that somebody else holds counts as ours", " AND {job_fence}", ""),
    ),
    *of(
        f"{SQL}/job_done.sql",
        "store/test_jobs",
        (
            "job-result-of-first",
            "all jobs of a batch get the result of the first",
            "pg_catalog.array_position(%(ids)s::bigint[], id)",
            "1",
        ),
    ),
    *of(
        f"{SQL}/job_fail.sql",
        "store/test_jobs",
        (
            "job-outcome-of-first",
            "all jobs of a batch fail for the reason of the first",
            "(%(outcomes)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]",
            "(%(outcomes)s::text[])[1]",
        ),
    ),
    *of(
        f"{SQL}/job_heartbeat.sql",
        "store/test_jobs",
        ("job-heartbeat-waits", "a heartbeat of a job waits for its finalize", "SKIP LOCKED", ""),
        (
            "job-heartbeat-short",
            "a heartbeat extends a job by half a lease",
            "%(lease)s::float8 *",
            "%(lease)s::float8 / 2 *",
        ),
        ("job-progress-wiped", "a heartbeat without progress wipes it out", "::json, progress)", "::json, NULL)"),
    ),
    *of(
        f"{SQL}/job_unique_find.sql",
        "store/test_jobs",
        (
            "job-unique-for-ever",
            "a finished job is taken for the open one of its unique key",
            " AND status IN ('queued', 'processing')",
            "",
        ),
    ),
    *of(
        f"{SQL}/fragments/dead_target.sql",
        "store/test_operators store/test_transitions",
        (
            "operator-any-status",
            "an operator's action changes more than dead messages",
            " AND status = 'dead'",
            "",
        ),
    ),
    *of(
        f"{SQL}/fragments/attempts_limit.sql",
        "store/test_queues store/test_reap store/test_claims",
        (
            "queue-limit-ignored",
            "a queue's own limit of attempts does not count",
            "q.queue = %(queue)s::text",
            "q.queue IS NULL",
        ),
    ),
    *of(
        f"{SQL}/enqueue_duplicate.sql",
        "client/test_producers",
        (
            "dedupe-other-event",
            "an event of another type passes for a repeat",
            "event_type = %(event_type)s::text\n       AND payload::",
            "payload::",
        ),
        (
            "dedupe-other-payload",
            "another payload passes for a repeat",
            "       AND payload::text IS NOT DISTINCT FROM %(payload)s::text\n",
            "",
        ),
    ),
    *of(
        f"{SQL}/try_lock_keys.sql",
        "store/test_expand",
        (
            "try-lock-takes-none",
            "an expansion takes no locks",
            "pg_try_advisory_xact_lock(n) AS got",
            "true AS got",
        ),
    ),
    *of(
        f"{SQL}/inbox_key_first.sql",
        "store/test_inbox",
        (
            "inbox-first-twice",
            "the first message of a key is taken in twice",
            "ON CONFLICT DO NOTHING",
            "ON CONFLICT (consumer, key) DO UPDATE SET last_sequence = excluded.last_sequence",
        ),
    ),
    *of(
        f"{SQL}/inbox_find.sql",
        "store/test_inbox store/test_inbox_corners client/test_inbox",
        (
            "inbox-any-consumer",
            "what another consumer took in counts as done",
            "consumer = %(consumer)s::text AND ",
            "",
        ),
    ),
    *of(
        f"{SQL}/inbox_purge.sql",
        "store/test_inbox_purge store/test_inbox",
        (
            "inbox-purge-young",
            "a purge of the inbox keeps half of the retention",
            "%(older_than)s::float8 *",
            "%(older_than)s::float8 / 2 *",
        ),
        (
            "inbox-purge-all",
            "a purge of one consumer takes what others took in",
            "WHERE consumer = %(consumer)s::text\n      AND accepted_at <",
            "WHERE accepted_at <",
        ),
        (
            "inbox-purge-waits",
            "a purge of the inbox waits for what others are at",
            "FOR UPDATE SKIP LOCKED",
            "FOR UPDATE",
        ),
    ),
    *of(
        f"{SQL}/fence_find.sql",
        "store/test_receiver_fence",
        (
            "fence-any-resource",
            "the token of another resource is compared",
            " AND resource = %(resource)s::text",
            "",
        ),
    ),
    *of(
        f"{SQL}/fence_purge.sql",
        "store/test_receiver_fence",
        (
            "fence-purge-young",
            "a purge of tokens keeps half of the retention",
            "%(older_than)s::float8 *",
            "%(older_than)s::float8 / 2 *",
        ),
    ),
    *of(
        f"{SQL}/ledger_purge.sql",
        "store/test_ledger",
        (
            "ledger-purge-young",
            "a purge of the ledger keeps half of the retention",
            "%(older_than)s::float8 *",
            "%(older_than)s::float8 / 2 *",
        ),
    ),
    *of(
        f"{SQL}/ledger_retries.sql",
        "store/test_ledger",
        (
            "ledger-any-action",
            "whatever an operator did to a message explains its next attempt",
            "outbox_id = ANY (%(ids)s::bigint[]) AND action = 'retry'",
            "outbox_id = ANY (%(ids)s::bigint[])",
        ),
    ),
    *of(
        f"{SQL}/breaker_failed.sql",
        "store/test_breaker",
        ("failure-counted-twice", "a failure counts as two", "q.breaker_seen + 1,", "q.breaker_seen + 2,"),
        ("failure-counted-open", "failures count while it is open", "WHERE q.breaker_opened_at IS NULL\n", ""),
    ),
    *of(
        f"{SQL}/breaker_open.sql",
        "store/test_breaker",
        ("breaker-opened-again", "each worker opens it anew", "WHERE q.breaker_opened_at IS NULL\n", ""),
        (
            "breaker-version-stands",
            "a breaker that opens keeps its version",
            "q.breaker_version + 1",
            "q.breaker_version",
        ),
        ("breaker-keeps-count", "an opened breaker keeps its count", "    breaker_seen = 0,\n", ""),
    ),
    *of(
        f"{SQL}/breaker_reopen.sql",
        "store/test_breaker",
        (
            "reopen-unfenced",
            "an old probe puts off the next one",
            " AND q.breaker_version = %(version)s::bigint",
            "",
        ),
        (
            "trips-uncounted",
            "failed probes do not add up",
            "q.breaker_trips + %(trips)s::int",
            "q.breaker_trips",
        ),
    ),
    *of(
        f"{SQL}/breaker_delivered.sql",
        "store/test_breaker",
        (
            "delivered-keeps-count",
            "a delivery does not clear the count",
            "SET breaker_seen = 0",
            "SET breaker_seen = 1",
        ),
    ),
    *of(
        f"{SQL}/rate_hold.sql",
        "store/test_rate",
        ("rate-unheld", "two claims spend the same allowance", "    FOR NO KEY UPDATE SKIP LOCKED\n", ""),
        (
            "rate-saves-up",
            "a quiet queue saves up for ever",
            "greatest(q.rate_per_second, 1::float8)",
            "1000000::float8",
        ),
    ),
    *of(
        f"{SQL}/partitions/has_kept.sql",
        "store/test_partitions",
        (
            "partition-open-dropped",
            "a partition with an open message holds up those behind it",
            "SELECT EXISTS (SELECT 1 FROM ONLY {partition} WHERE done_at IS NULL)\n",
            "SELECT false\n",
        ),
        (
            "partition-young-dropped",
            "a partition is dropped after half of its retention",
            "%(older_than)s::float8 *",
            "%(older_than)s::float8 / 2 *",
        ),
    ),
]
