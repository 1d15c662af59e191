SELECT {job_columns_brief}, {job_life}, NULL::text AS result
FROM {job} AS j
WHERE j.status = 'done'
  AND (j.finished_at, j.id) > (%(after_at)s::text::timestamptz, %(after_id)s::bigint)
  AND {job_filter}
  AND (%(outcome)s::text IS NULL OR j.outcome = %(outcome)s::text)
ORDER BY j.finished_at, j.id
LIMIT %(limit)s::int
