-- The probe went well. Behind its fence: a probe that comes back after another one was let through decides nothing.
UPDATE {queue} AS q
SET breaker_version = q.breaker_version + 1,
    breaker_opened_at = NULL,
    breaker_probe_at = NULL,
    breaker_trips = 0,
    breaker_seen = 0,
    breaker_error = NULL
WHERE q.queue = %(queue)s::text
  AND q.breaker_opened_at IS NOT NULL
  AND (%(version)s::bigint IS NULL OR q.breaker_version = %(version)s::bigint)
RETURNING q.breaker_version
