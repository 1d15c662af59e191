-- Claim jobs that a worker may have crashed on, behind `job_lanes_lock`: what came back longest ago first.
WITH fresh AS MATERIALIZED (SELECT gen_random_uuid() AS token),
{job_running},
suspect AS MATERIALIZED (
    SELECT j.id
    FROM {job} AS j
    WHERE j.queue = %(queue)s::text AND j.status = 'queued' AND j.reclaim_count > 0
      AND j.reclaim_count <= %(max_reclaims)s::int
      AND j.available_at <= statement_timestamp()
      AND (j.lane IS NULL OR (
          coalesce((SELECT running.n FROM running WHERE running.task = j.task AND running.lane = j.lane), 0)
              < coalesce((%(widths)s::int[])[pg_catalog.array_position(%(tasks)s::text[], j.task)], 1)
          AND coalesce((SELECT sum(running.n) FROM running WHERE running.task = j.task), 0::bigint)
              < coalesce((%(limits)s::int[])[pg_catalog.array_position(%(tasks)s::text[], j.task)], 1)
      ))
    ORDER BY j.available_at, j.id
    LIMIT %(batch)s::int
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE {job} AS j
{job_claim_set}
WHERE j.id = ANY (ARRAY(SELECT id FROM suspect))
{job_claim_returning}
