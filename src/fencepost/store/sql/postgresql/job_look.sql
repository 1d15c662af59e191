-- What there is in these queues, in their order: due jobs, jobs in lanes, jobs that a worker may have crashed on.
SELECT q.queue,
    EXISTS (SELECT 1 FROM {job} AS j
            WHERE j.queue = q.queue AND j.status = 'queued' AND j.lane IS NULL AND j.reclaim_count = 0
              AND j.available_at <= statement_timestamp()),
    EXISTS (SELECT 1 FROM {job} AS j
            WHERE j.queue = q.queue AND j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0),
    EXISTS (SELECT 1 FROM {job} AS j
            WHERE j.queue = q.queue AND j.status = 'queued' AND j.reclaim_count > 0
              AND j.available_at <= statement_timestamp())
FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS q (queue, place)
ORDER BY q.place
