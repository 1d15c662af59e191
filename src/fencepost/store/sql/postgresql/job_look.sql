-- What there is in these queues, in their order: due jobs, jobs in lanes, jobs that a worker may have crashed on. (As
-- scalars: EXISTS may be answered from a hash of every queued job.)
SELECT q.queue,
    coalesce((SELECT true FROM {job} AS j
              WHERE j.queue = q.queue AND j.status = 'queued' AND j.lane IS NULL AND j.reclaim_count = 0
                AND j.available_at <= statement_timestamp() LIMIT 1), false),
    coalesce((SELECT true FROM {job} AS j
              WHERE j.queue = q.queue AND j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0
              LIMIT 1), false),
    coalesce((SELECT true FROM {job} AS j
              WHERE j.queue = q.queue AND j.status = 'queued' AND j.reclaim_count > 0
                AND j.available_at <= statement_timestamp() LIMIT 1), false)
FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS q (queue, place)
ORDER BY q.place
