-- The first job of each lane, lane by lane, and how many jobs of its task run.
WITH RECURSIVE {job_running},
lanes (queue, task, lane, n) AS (
    (SELECT queue, task, lane, 1
     FROM {job}
     WHERE status = 'queued' AND lane IS NOT NULL AND reclaim_count = 0
     ORDER BY queue, task, lane
     LIMIT 1)
    UNION ALL
    SELECT further.queue, further.task, further.lane, lanes.n + 1
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT l.queue, l.task, l.lane
        FROM {job} AS l
        WHERE l.status = 'queued' AND l.lane IS NOT NULL AND l.reclaim_count = 0
          AND (l.queue, l.task, l.lane) > (lanes.queue, lanes.task, lanes.lane)
        ORDER BY l.queue, l.task, l.lane
        LIMIT 1
    ) AS further
    WHERE lanes.n < %(window)s::int
)
SELECT {job_columns_brief}, {job_life}, NULL::text AS result,
    coalesce((SELECT sum(running.n) FROM running WHERE running.task = j.task), 0::bigint) AS beside
FROM lanes
CROSS JOIN LATERAL (
    SELECT f.*
    FROM (
        SELECT r.*
        FROM {job} AS r
        WHERE r.queue = lanes.queue AND r.task = lanes.task AND r.lane = lanes.lane
          AND r.status = 'queued' AND r.lane IS NOT NULL AND r.reclaim_count = 0
        ORDER BY r.available_at, r.id
        LIMIT 1
    ) AS f
    WHERE {job_waits_long}
) AS j
ORDER BY j.available_at, j.id
LIMIT %(limit)s::int
