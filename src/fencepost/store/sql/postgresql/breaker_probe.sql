-- Take the right to one probe of a queue whose breaker is open. Whoever takes it and dies gives it back by the
-- clock. Where somebody else has the row, they are at it, or will be done soon: a claim must not wait for that.
UPDATE {queue} AS q
SET breaker_version = q.breaker_version + 1,
    breaker_probe_at = clock_timestamp() + %(patience)s::float8 * interval '1 second'
WHERE q.queue = (
    SELECT p.queue
    FROM {queue} AS p
    WHERE p.queue = %(queue)s::text
      AND NOT p.paused
      AND p.breaker_opened_at IS NOT NULL
      AND p.breaker_probe_at <= clock_timestamp()
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING q.breaker_version
