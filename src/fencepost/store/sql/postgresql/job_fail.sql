UPDATE {job}
SET status = 'failed', finished_at = statement_timestamp(), reserved_at = NULL, lease_expires_at = NULL,
    outcome = (%(outcomes)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)],
    last_error = (%(errors)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
RETURNING id
