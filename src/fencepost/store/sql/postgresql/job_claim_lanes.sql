-- Claim due jobs of tasks that have a limit, behind `job_lanes_lock`. The walk goes from lane to lane, not from job to
-- job, so that a lane that is full stands in nobody's way however long it is.
WITH RECURSIVE fresh AS MATERIALIZED (SELECT gen_random_uuid() AS token),
{job_running},
lanes (task, lane, n) AS (
    (SELECT task, lane, 1
     FROM {job}
     WHERE queue = %(queue)s::text AND status = 'queued' AND lane IS NOT NULL AND reclaim_count = 0
       AND (task, lane) > (%(after_task)s::text COLLATE "C", %(after_lane)s::text COLLATE "C")
     ORDER BY task, lane
     LIMIT 1)
    UNION ALL
    SELECT further.task, further.lane, lanes.n + 1
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT j.task, j.lane
        FROM {job} AS j
        WHERE j.queue = %(queue)s::text AND j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0
          AND (j.task, j.lane) > (lanes.task, lanes.lane)
        ORDER BY j.task, j.lane
        LIMIT 1
    ) AS further
    WHERE lanes.n < %(lanes)s::int
),
free AS MATERIALIZED (
    SELECT lanes.task, lanes.lane,
           -- A task that this worker does not know runs one at a time: it is only given back.
           coalesce((%(widths)s::int[])[pg_catalog.array_position(%(tasks)s::text[], lanes.task)], 1)
               - coalesce(running.n, 0) AS room
    FROM lanes
    LEFT JOIN running ON running.task = lanes.task AND running.lane = lanes.lane
),
candidate AS MATERIALIZED (
    SELECT due.id, due.available_at, free.task
    FROM free
    CROSS JOIN LATERAL (
        SELECT j.id, j.available_at
        FROM {job} AS j
        WHERE j.queue = %(queue)s::text AND j.task = free.task AND j.lane = free.lane
          AND j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0
          AND j.available_at <= statement_timestamp()
        ORDER BY j.available_at, j.id
        LIMIT least(greatest(free.room, 0), %(batch)s::int)
        FOR UPDATE SKIP LOCKED
    ) AS due
),
fitting AS MATERIALIZED (
    SELECT numbered.id
    FROM (
        SELECT c.id, c.task, c.available_at, row_number() OVER (PARTITION BY c.task ORDER BY c.available_at, c.id) AS nth
        FROM candidate AS c
    ) AS numbered
    WHERE numbered.nth <= coalesce((%(limits)s::int[])[pg_catalog.array_position(%(tasks)s::text[], numbered.task)], 1)
        - coalesce((SELECT sum(running.n) FROM running WHERE running.task = numbered.task), 0::bigint)
    ORDER BY numbered.available_at, numbered.id
    LIMIT %(batch)s::int
),
taken AS (
    UPDATE {job} AS j
    {job_claim_set}
    WHERE j.id = ANY (ARRAY(SELECT id FROM fitting))
    {job_claim_returning}
)
SELECT taken.*, walk.task, walk.lane
FROM (
    -- Where the walk was cut short, and goes on next time; nothing where it came to the end.
    SELECT (SELECT task FROM lanes WHERE n = %(lanes)s::int) AS task, (SELECT lane FROM lanes WHERE n = %(lanes)s::int) AS lane
) AS walk
LEFT JOIN taken ON true
