UPDATE {job}
SET status = 'done', outcome = 'completed', finished_at = statement_timestamp(),
    reserved_at = NULL, lease_expires_at = NULL,
    result = (%(results)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]::json
WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
RETURNING id
