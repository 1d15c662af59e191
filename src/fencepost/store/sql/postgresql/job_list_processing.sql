SELECT {job_columns_brief}, {job_life}, NULL::text AS result
FROM {job} AS j
WHERE j.status = 'processing' AND j.id > %(after_id)s::bigint
  AND {job_filter}
ORDER BY j.id
LIMIT %(limit)s::int
