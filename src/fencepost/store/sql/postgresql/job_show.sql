SELECT {job_columns}, {job_life}, j.result::text AS result
FROM {job} AS j
WHERE j.id = %(id)s::bigint
