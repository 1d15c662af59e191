-- There is no index on it: this reads the table.
SELECT {job_columns}, {job_life}, j.result::text AS result
FROM {job} AS j
WHERE j.job_id = %(job_id)s::text::uuid
ORDER BY j.id
LIMIT 1
