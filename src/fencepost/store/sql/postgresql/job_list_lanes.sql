SELECT {job_columns_brief}, {job_life}, NULL::text AS result
FROM {job} AS j
WHERE j.status = 'queued' AND j.lane IS NOT NULL AND j.reclaim_count = 0
  AND (j.queue, j.task, j.lane, j.available_at, j.id)
      > (%(after_queue)s::text COLLATE "C", %(after_task)s::text COLLATE "C", %(after_lane)s::text COLLATE "C",
         %(after_at)s::text::timestamptz, %(after_id)s::bigint)
  AND {job_filter}
ORDER BY j.queue, j.task, j.lane, j.available_at, j.id
LIMIT %(limit)s::int
