-- Rows that are locked just now are being finalized: they are skipped, never waited for, so that a heartbeat cannot
-- deadlock with a finalize.
WITH mine AS MATERIALIZED (
    SELECT id
    FROM {job}
    WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
UPDATE {job}
SET lease_expires_at = statement_timestamp() + %(lease)s::float8 * interval '1 second',
    heartbeat_at = statement_timestamp(),
    progress = coalesce(
        (%(progress)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]::json, progress)
WHERE id = ANY (ARRAY(SELECT id FROM mine)) AND {job_fence}
RETURNING id
