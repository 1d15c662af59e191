EXISTS (SELECT 1 FROM {queue} AS q WHERE q.queue = %(queue)s::text AND q.paused)
