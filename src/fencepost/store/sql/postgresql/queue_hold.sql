-- Lock a queue's row, made where there is none, and return it: what two operators change at once adds up. Last, the seconds
-- since it was changed, below zero where that was while we waited for its lock.
INSERT INTO {queue} AS q (queue) VALUES (%(queue)s::text)
ON CONFLICT (queue) DO UPDATE SET paused = q.paused
RETURNING {queue_columns}, extract(epoch FROM statement_timestamp() - q.changed_at)::float8
