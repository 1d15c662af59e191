-- Take back the jobs whose lease has expired, longest ago first: a bounded number, of what is in flight alone. Each
-- gets a token that nobody has.
WITH expired AS MATERIALIZED (
    SELECT id, attempt_token::text AS token
    FROM {job}
    WHERE status = 'processing' AND lease_expires_at < statement_timestamp()
    ORDER BY lease_expires_at, id
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
)
UPDATE {job} AS j
SET status = CASE WHEN {job_may_repeat} THEN 'queued' ELSE 'failed' END,
    outcome = CASE WHEN {job_may_repeat} THEN NULL
                   WHEN j.recovery_policy = 'auto' THEN 'crashed' ELSE 'unknown_outcome' END,
    finished_at = CASE WHEN {job_may_repeat} THEN NULL ELSE statement_timestamp() END,
    available_at = CASE WHEN {job_may_repeat} THEN statement_timestamp() ELSE j.available_at END,
    reserved_at = NULL, lease_expires_at = NULL,
    attempt_token = gen_random_uuid(),
    reclaim_count = least(j.reclaim_count + 1, 1000000000),
    last_error = left(
        'the lease of worker ' || j.reserved_by || ' expired on attempt ' || j.attempts::text
        || ': it probably crashed or froze; what the job does may have been done all the same'
        || coalesce(E'\nbefore: ' || j.last_error, ''), 4000)
FROM expired
-- (The array keeps a generic plan from joining by a scan of the whole table.)
WHERE j.id = expired.id AND j.id = ANY (ARRAY(SELECT id FROM expired))
  AND j.status = 'processing' AND j.lease_expires_at < statement_timestamp()
RETURNING j.id, j.task, j.status, j.outcome, j.reserved_by, j.attempts, expired.token
