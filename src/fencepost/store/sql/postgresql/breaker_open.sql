-- Open the breaker of a queue, unless it is open: of many workers that see the same outage, the first one does.
INSERT INTO {queue} AS q (
    queue, breaker_version, breaker_opened_at, breaker_probe_at, breaker_trips, breaker_error
)
VALUES (
    %(queue)s::text, 1, clock_timestamp(), clock_timestamp() + %(pause)s::float8 * interval '1 second', 0,
    %(error)s::text
)
ON CONFLICT (queue) DO UPDATE
SET breaker_version = q.breaker_version + 1,
    breaker_opened_at = excluded.breaker_opened_at,
    breaker_probe_at = excluded.breaker_probe_at,
    breaker_trips = 0,
    breaker_seen = 0,
    breaker_error = excluded.breaker_error
WHERE q.breaker_opened_at IS NULL
RETURNING q.breaker_version
