-- The probe failed, or told nothing: the next one comes after a pause.
UPDATE {queue} AS q
SET breaker_version = q.breaker_version + 1,
    breaker_probe_at = clock_timestamp() + %(pause)s::float8 * interval '1 second',
    breaker_trips = least(q.breaker_trips + %(trips)s::int, 1000000000),
    breaker_error = coalesce(%(error)s::text, q.breaker_error)
WHERE q.queue = %(queue)s::text AND q.breaker_opened_at IS NOT NULL AND q.breaker_version = %(version)s::bigint
RETURNING q.breaker_version
