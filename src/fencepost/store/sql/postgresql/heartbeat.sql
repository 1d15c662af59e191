-- Rows that are locked just now are being finalized: they are skipped, never waited for, so that a
-- heartbeat cannot deadlock with a finalize.
WITH mine AS MATERIALIZED (
    SELECT id
    FROM {outbox}
    WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
UPDATE {outbox} AS o
SET lease_until = statement_timestamp() + %(lease)s::float8 * interval '1 second'
WHERE o.id = ANY (ARRAY(SELECT id FROM mine))
  AND {message_fence}
RETURNING o.id
