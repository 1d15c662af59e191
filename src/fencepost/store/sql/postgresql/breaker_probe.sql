-- Take the right to one probe of a queue whose breaker is open. Whoever takes it and dies gives it back by the
-- clock.
UPDATE {queue} AS q
SET breaker_version = q.breaker_version + 1,
    breaker_probe_at = clock_timestamp() + %(patience)s::float8 * interval '1 second'
WHERE q.queue = %(queue)s::text
  AND NOT q.paused
  AND q.breaker_opened_at IS NOT NULL
  AND q.breaker_probe_at <= clock_timestamp()
RETURNING q.breaker_version
