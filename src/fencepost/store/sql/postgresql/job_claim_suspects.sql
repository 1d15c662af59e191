-- Claim jobs that a worker may have crashed on, behind `job_lanes_lock`: what came back longest ago first.
WITH fresh AS MATERIALIZED (SELECT gen_random_uuid() AS token),
{job_running},
suspect AS MATERIALIZED (
    SELECT j.id, j.task, j.lane, j.available_at
    FROM {job} AS j
    WHERE j.queue = %(queue)s::text AND j.status = 'queued' AND j.reclaim_count > 0
      AND j.reclaim_count <= %(max_reclaims)s::int
      -- (0 asks for those as well that have none left: they come to their end in the claim.)
      AND (%(spare_attempts)s::int = 0 OR j.attempts + %(spare_attempts)s::int < j.max_attempts)
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
),
-- Several of one lane may wait, whose workers crashed one after the other: no more of them than there is room for.
fitting AS MATERIALIZED (
    SELECT numbered.id
    FROM (
        SELECT s.id, s.task, s.lane,
               row_number() OVER (PARTITION BY s.task, s.lane ORDER BY s.available_at, s.id) AS nth_of_lane,
               row_number() OVER (PARTITION BY s.task ORDER BY s.available_at, s.id) AS nth_of_task
        FROM suspect AS s
    ) AS numbered
    WHERE numbered.lane IS NULL OR (
        numbered.nth_of_lane
            <= coalesce((%(widths)s::int[])[pg_catalog.array_position(%(tasks)s::text[], numbered.task)], 1)
            - coalesce((SELECT running.n FROM running
                        WHERE running.task = numbered.task AND running.lane = numbered.lane), 0)
        AND numbered.nth_of_task
            <= coalesce((%(limits)s::int[])[pg_catalog.array_position(%(tasks)s::text[], numbered.task)], 1)
            - coalesce((SELECT sum(running.n) FROM running WHERE running.task = numbered.task), 0::bigint)
    )
)
UPDATE {job} AS j
{job_claim_set}
WHERE j.id = ANY (ARRAY(SELECT id FROM fitting))
{job_claim_returning}
