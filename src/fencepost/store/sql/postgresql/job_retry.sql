-- Back to the queue as if it were new, under a token that nobody has. A unique key that an open job has meanwhile stays
-- with that one, and of several failed jobs of one key the first goes back.
WITH target AS MATERIALIZED (
    SELECT id, job_id,
    {job_before}
    FROM {job} AS f
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'failed'
      AND (unique_key IS NULL OR (
          NOT EXISTS (
              SELECT 1 FROM {job} AS o
              WHERE o.task = f.task AND o.unique_key = f.unique_key AND o.unique_key IS NOT NULL
                AND o.status IN ('queued', 'processing')
          )
          AND NOT EXISTS (
              SELECT 1 FROM {job} AS e
              WHERE e.id = ANY (%(ids)s::bigint[]) AND e.id < f.id AND e.status = 'failed'
                AND e.task = f.task AND e.unique_key = f.unique_key
          )
      ))
    ORDER BY id
    FOR UPDATE OF f
),
changed AS (
    UPDATE {job} AS j
    SET status = 'queued', outcome = NULL, finished_at = NULL, available_at = statement_timestamp(),
        attempts = 0, reclaim_count = 0, attempt_token = gen_random_uuid()
    FROM target
    WHERE j.id = target.id AND j.id = ANY (%(ids)s::bigint[]) AND j.status = 'failed'
    RETURNING j.id
)
INSERT INTO {job_audit} (actor, action, row_id, job_id, reason, before)
SELECT %(actor)s::text, 'retry', target.id, target.job_id, %(reason)s::text, target.before
FROM target JOIN changed USING (id)
RETURNING row_id
