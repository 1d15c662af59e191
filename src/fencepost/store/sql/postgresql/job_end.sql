-- An operator's cancel or fail. The token is one that nobody has: a worker that runs the job finds its lease lost.
WITH target AS MATERIALIZED (
    SELECT id, job_id,
    {job_before}
    FROM {job}
    WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('queued', 'processing')
    ORDER BY id
    FOR UPDATE
),
changed AS (
    UPDATE {job} AS j
    SET status = 'failed', outcome = %(outcome)s::text, finished_at = statement_timestamp(),
        reserved_at = NULL, lease_expires_at = NULL, attempt_token = gen_random_uuid(),
        last_error = left(%(error)s::text || coalesce(E'\nbefore: ' || j.last_error, ''), 4000)
    FROM target
    WHERE j.id = target.id AND j.id = ANY (%(ids)s::bigint[]) AND j.status IN ('queued', 'processing')
    RETURNING j.id
)
INSERT INTO {job_audit} (actor, action, row_id, job_id, reason, before)
SELECT %(actor)s::text, %(action)s::text, target.id, target.job_id, %(reason)s::text, target.before
FROM target JOIN changed USING (id)
RETURNING row_id
