EXISTS (
    SELECT 1 FROM {queue} AS q
    WHERE q.queue = %(queue)s::text AND (q.paused OR (q.breaker_opened_at IS NOT NULL AND NOT %(is_probe)s::boolean))
)
