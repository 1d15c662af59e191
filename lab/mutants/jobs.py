"""Sabotages of the SQL of jobs, ledger, inbox, fence, breakers, rates and schedules."""

from __future__ import annotations

from lab.mutants.mutant import SQL, of

MUTANTS = [
    *of(
        f"{SQL}/fragments/job_fence.sql",
        "store/test_jobs store/test_fence_files",
        ("job-fence-no-status", "the fence of a job forgets the status", "status = 'processing'\n", "true\n"),
        (
            "job-fence-no-token",
            "the fence of a job forgets the token",
            "AND attempt_token = (SELECT",
            "AND attempt_token IS DISTINCT FROM (SELECT",
        ),
    ),
    *of(
        f"{SQL}/fragments/job_claim_set.sql",
        "store/test_jobs",
        (
            "job-fence-stands",
            "the fence number of a job stands still",
            "fence = least(j.fence + 1, 4611686018427387904)",
            "fence = greatest(j.fence, 1)",
        ),
        (
            "job-old-token",
            "a claimed job keeps its old token",
            "attempt_token = (SELECT token FROM fresh)",
            "attempt_token = coalesce(j.attempt_token, (SELECT token FROM fresh))",
        ),
        (
            "job-uncharged",
            "a claim of a job charges no attempt from the second one on",
            "THEN j.attempts + 1 ELSE",
            "THEN greatest(j.attempts, 1) ELSE",
        ),
    ),
    *of(
        f"{SQL}/fragments/job_claimable.sql",
        "store/test_jobs",
        (
            "job-limit-one-late",
            "a claim exceeds the limit of a job by one",
            "j.attempts < j.max_attempts",
            "j.attempts <= j.max_attempts",
        ),
    ),
    *of(
        f"{SQL}/fragments/job_may_repeat.sql",
        "store/test_jobs",
        (
            "job-manual-repeats",
            "a lost job under recovery manual is queued again",
            "j.recovery_policy <> 'manual' AND ",
            "",
        ),
    ),
    *of(
        f"{SQL}/fragments/job_running.sql",
        "store/test_jobs",
        (
            "job-running-uncounted",
            "of what runs in a lane one is not counted",
            "count(*)::int AS n",
            "count(*)::int - 1 AS n",
        ),
    ),
    *of(
        f"{SQL}/job_claim.sql",
        "store/test_jobs",
        (
            "job-claim-suspects",
            "a normal claim takes jobs that may crash their worker",
            " AND lane IS NULL AND reclaim_count = 0\n",
            " AND lane IS NULL\n",
        ),
        (
            "job-claim-lanes",
            "a normal claim takes jobs that have a limit",
            " AND lane IS NULL AND reclaim_count = 0\n",
            " AND reclaim_count = 0\n",
        ),
        (
            "job-claim-early",
            "a claim takes jobs that are not due",
            "      AND available_at <= statement_timestamp()\n",
            "",
        ),
    ),
    *of(
        f"{SQL}/job_claim_lanes.sql",
        "store/test_jobs",
        (
            "lanes-one-more",
            "a lane takes one more than its limit",
            "LIMIT least(greatest(free.room, 0), %(batch)s::int)",
            "LIMIT least(greatest(free.room + 1, 0), %(batch)s::int)",
        ),
        (
            "lanes-task-limit",
            "the limit over all of a task is ignored",
            "WHERE numbered.nth <= coalesce(",
            "WHERE true OR numbered.nth <= coalesce(",
        ),
        (
            "lanes-no-end",
            "a walk through the lanes does not say where it was cut short",
            "(SELECT task FROM lanes WHERE n = %(lanes)s::int) AS task",
            "NULL::text AS task",
        ),
    ),
    *of(
        f"{SQL}/job_claim_suspects.sql",
        "store/test_jobs",
        (
            "job-suspects-of-full-lanes",
            "suspects of a lane that is full are in the way of others",
            " < coalesce((%(widths)s::int[])",
            " <= coalesce((%(widths)s::int[])",
        ),
        (
            "job-suspects-over-lane",
            "suspects of one lane are run past its limit",
            "<= coalesce((%(widths)s::int[])",
            "<= 1 + coalesce((%(widths)s::int[])",
        ),
        (
            "job-suspects-over-task",
            "suspects of one task are run past its limit",
            "<= coalesce((%(limits)s::int[])",
            "<= 1 + coalesce((%(limits)s::int[])",
        ),
        (
            "job-suspects-reclaims",
            "the limit of reclaims is ignored",
            "      AND j.reclaim_count <= %(max_reclaims)s::int\n",
            "",
        ),
        (
            "job-suspects-no-spare",
            "a batch of suspects may spend the last attempts",
            "j.attempts + %(spare_attempts)s::int < j.max_attempts",
            "true",
        ),
    ),
    *of(
        f"{SQL}/job_lanes_lock.sql",
        "store/test_jobs",
        (
            "lanes-unlocked",
            "two workers count what runs at once",
            "SELECT pg_catalog.pg_try_advisory_xact_lock(",
            "SELECT 0 <> (",
        ),
    ),
    *of(
        f"{SQL}/job_reclaim.sql",
        "store/test_jobs",
        (
            "reclaim-keeps-token",
            "a job taken back keeps its token",
            "    attempt_token = gen_random_uuid(),\n",
            "",
        ),
        (
            "reclaim-uncounted",
            "a job taken back is no crash suspect",
            "least(j.reclaim_count + 1, 1000000000)",
            "least(j.reclaim_count, 1000000000)",
        ),
    ),
    *of(
        f"{SQL}/job_requeue.sql",
        "store/test_jobs",
        ("job-below-zero", "a job's refund goes below 0", "greatest(0, attempts - 1)", "attempts - 1"),
        (
            "job-no-refund",
            "a released job is charged",
            "THEN greatest(0, attempts - 1) ELSE attempts END",
            "THEN attempts ELSE attempts END",
        ),
        ("job-retry-at-once", "a retried job is due at once", "* interval '1 second',", "* interval '0 seconds',"),
        (
            "job-release-forgets",
            "a job that is given back forgets the error of its last attempt",
            "[pg_catalog.array_position(%(ids)s::bigint[], id)], last_error)",
            "[pg_catalog.array_position(%(ids)s::bigint[], id)])",
        ),
    ),
    *of(
        f"{SQL}/job_finalized.sql",
        "store/test_jobs",
        (
            "job-repeat-any-outcome",
            "a repeated finalize of a job takes any outcome for its own",
            "  AND outcome IS NOT DISTINCT FROM (%(outcomes)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]\n",
            "",
        ),
    ),
    *of(
        f"{SQL}/job_end.sql",
        "store/test_job_operators",
        (
            "cancel-keeps-token",
            "a cancelled job keeps its token",
            "reserved_at = NULL, lease_expires_at = NULL, attempt_token = gen_random_uuid(),",
            "reserved_at = NULL, lease_expires_at = NULL,",
        ),
    ),
    *of(
        f"{SQL}/job_retry.sql",
        "store/test_job_operators",
        (
            "job-retry-keeps-attempts",
            "an operator's retry of a job keeps its attempts",
            "attempts = 0, reclaim_count = 0, attempt_token",
            "reclaim_count = 0, attempt_token",
        ),
        (
            "job-retry-keeps-suspicion",
            "an operator's retry of a job keeps its count of reclaims",
            "attempts = 0, reclaim_count = 0, attempt_token",
            "attempts = 0, attempt_token",
        ),
    ),
    *of(
        f"{SQL}/job_purge.sql",
        "store/test_jobs store/test_purge",
        (
            "job-purge-young",
            "a purge of jobs keeps half of the retention",
            "%(older_than)s::float8 *",
            "%(older_than)s::float8 / 2 *",
        ),
    ),
    *of(
        f"{SQL}/ledger_close.sql",
        "store/test_ledger",
        ("ledger-end-twice", "the end of an attempt is written again", "\n  AND a.ended_at IS NULL", ""),
        ("ledger-end-of-another", "a worker ends another's attempt", " AND a.worker = e.worker", ""),
    ),
    *of(
        f"{SQL}/inbox_key_hold.sql",
        "store/test_inbox store/test_inbox_corners",
        ("inbox-key-unlocked", "two consumers work at one key at once", "\nFOR UPDATE", ""),
    ),
    *of(
        f"{SQL}/inbox_accept.sql",
        "store/test_inbox",
        (
            "inbox-repeats",
            "a repeat is taken in once more",
            "ON CONFLICT DO NOTHING",
            "ON CONFLICT (consumer, message_id) DO UPDATE SET fence = excluded.fence",
        ),
    ),
    *of(
        f"{SQL}/fence_admit.sql",
        "store/test_receiver_fence",
        (
            "admit-older",
            "a receiver lets an older token in",
            "WHERE f.token <= excluded.token",
            "WHERE f.token <= excluded.token + 1",
        ),
        (
            "admit-no-write",
            "the same token does not write the row",
            "WHERE f.token <= excluded.token",
            "WHERE f.token < excluded.token",
        ),
    ),
    *of(
        f"{SQL}/breaker_close.sql",
        "store/test_breaker",
        (
            "breaker-unfenced",
            "an old probe closes the breaker",
            " OR q.breaker_version = %(version)s::bigint)",
            " OR q.breaker_version >= %(version)s::bigint)",
        ),
    ),
    *of(
        f"{SQL}/breaker_probe.sql",
        "store/test_breaker",
        (
            "probe-early",
            "a probe is let through before it is due",
            "      AND p.breaker_probe_at <= clock_timestamp()\n",
            "",
        ),
    ),
    *of(
        f"{SQL}/rate_spend.sql",
        "store/test_rate",
        (
            "rate-half",
            "a claim is charged half of what it took",
            "+ %(messages)s::int / q.rate_per_second",
            "+ %(messages)s::int / 2 / q.rate_per_second",
        ),
    ),
    *of(
        f"{SQL}/cron_move.sql",
        "store/test_schedules",
        (
            "schedule-moves-back",
            "a schedule may move back",
            "greatest(last_tick, %(last_tick)s::text::timestamptz)",
            "least(last_tick, %(last_tick)s::text::timestamptz)",
        ),
    ),
    *of(
        f"{SQL}/cron_hold.sql",
        "store/test_schedules",
        (
            "schedule-unheld",
            "two workers enqueue the ticks of one schedule at once",
            "\nFOR UPDATE SKIP LOCKED",
            "",
        ),
    ),
    *of(
        f"{SQL}/next_sequences.sql",
        "store/test_order_numbers",
        (
            "number-gap",
            "numbers of a key have gaps",
            "k.last_sequence + excluded.last_sequence",
            "k.last_sequence + excluded.last_sequence + 1",
        ),
    ),
    *of(
        f"{SQL}/job_reclaim.sql",
        "store/test_jobs",
        (
            "reclaim-live",
            "a job whose lease has not ended is taken back",
            "lease_expires_at < statement_timestamp()",
            "lease_expires_at IS NOT NULL",
        ),
        places=2,
    ),
    *of(
        f"{SQL}/job_end.sql",
        "store/test_job_operators",
        (
            "cancel-finished",
            "a finished job can be cancelled",
            "status IN ('queued', 'processing')",
            "status IS NOT NULL",
        ),
        places=2,
    ),
]
