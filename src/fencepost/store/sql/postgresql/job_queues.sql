-- Queues that have something queued, by name: a walk from each one to the next in the indexes of what is queued.
WITH RECURSIVE names (queue) AS (
    SELECT least(
        (SELECT min(queue) FROM {job} WHERE status = 'queued' AND lane IS NULL AND reclaim_count = 0),
        (SELECT min(queue) FROM {job} WHERE status = 'queued' AND lane IS NOT NULL AND reclaim_count = 0),
        (SELECT min(queue) FROM {job} WHERE status = 'queued' AND reclaim_count > 0)
    )
    UNION ALL
    SELECT least(
        (SELECT min(j.queue) FROM {job} AS j
         WHERE j.queue > names.queue AND j.status = 'queued' AND j.lane IS NULL AND j.reclaim_count = 0),
        (SELECT min(j.queue) FROM {job} AS j
         WHERE j.queue > names.queue AND j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0),
        (SELECT min(j.queue) FROM {job} AS j
         WHERE j.queue > names.queue AND j.status = 'queued' AND j.reclaim_count > 0)
    )
    FROM names
    WHERE names.queue IS NOT NULL
)
SELECT queue FROM names WHERE queue IS NOT NULL LIMIT %(limit)s::int
