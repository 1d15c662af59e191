SELECT id
FROM {job}
WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
