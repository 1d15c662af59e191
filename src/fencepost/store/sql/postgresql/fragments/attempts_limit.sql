(SELECT coalesce((SELECT q.max_attempts FROM {queue} AS q WHERE q.queue = %(queue)s::text), %(max_attempts)s::int))
