-- Back to the queue, by its holder: after a failure, deferred, or never started. Without a delay it keeps its place.
UPDATE {job}
SET status = 'queued', reserved_at = NULL, lease_expires_at = NULL,
    attempts = CASE WHEN (%(refunds)s::boolean[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
                    THEN greatest(0, attempts - 1) ELSE attempts END,
    available_at = coalesce(
        statement_timestamp()
            + (%(delays)s::float8[])[pg_catalog.array_position(%(ids)s::bigint[], id)] * interval '1 second',
        available_at),
    last_error = coalesce((%(errors)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)], last_error)
WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
RETURNING id
