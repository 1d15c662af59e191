-- Claim due jobs of one queue that have no limit of their own and that no worker may have crashed on. The
-- materialized CTE makes the number exact under any plan; the array keeps a generic plan from joining by a scan of the
-- whole table.
WITH fresh AS MATERIALIZED (SELECT gen_random_uuid() AS token),
due AS MATERIALIZED (
    SELECT id
    FROM {job}
    WHERE queue = %(queue)s::text AND status = 'queued' AND lane IS NULL AND reclaim_count = 0
      AND available_at <= statement_timestamp()
    ORDER BY available_at, id
    LIMIT %(batch)s::int
    FOR UPDATE SKIP LOCKED
)
UPDATE {job} AS j
{job_claim_set}
WHERE j.id = ANY (ARRAY(SELECT id FROM due))
{job_claim_returning}
