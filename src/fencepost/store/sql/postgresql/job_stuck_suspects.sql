-- What came back from lost workers, in the front of each queue: more than once, or waiting for long.
SELECT {job_columns_brief}, {job_life}, NULL::text AS result, 0::bigint AS beside
FROM unnest(%(queues)s::text[]) AS q (queue)
CROSS JOIN LATERAL (
    SELECT f.*
    FROM (
        SELECT r.*
        FROM {job} AS r
        WHERE r.queue = q.queue AND r.status = 'queued' AND r.reclaim_count > 0
        ORDER BY r.available_at, r.id
        LIMIT %(window)s::int
    ) AS f
    WHERE f.reclaim_count >= %(reclaims)s::int OR {job_waits_long}
    LIMIT %(limit)s::int
) AS j
ORDER BY j.available_at, j.id
LIMIT %(limit)s::int
