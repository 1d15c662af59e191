-- Count a failure to reach the destination of a queue, over all workers, and return the count; no row where the
-- breaker is open.
INSERT INTO {queue} AS q (queue, breaker_seen) VALUES (%(queue)s::text, 1)
ON CONFLICT (queue) DO UPDATE SET breaker_seen = least(q.breaker_seen + 1, 1000000000)
WHERE q.breaker_opened_at IS NULL
RETURNING q.breaker_seen
