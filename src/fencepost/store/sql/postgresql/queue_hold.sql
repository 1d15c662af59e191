-- Lock a queue's row, made where there is none, and return it: what two operators change at once adds up.
INSERT INTO {queue} AS q (queue) VALUES (%(queue)s::text)
ON CONFLICT (queue) DO UPDATE SET paused = q.paused
RETURNING {queue_columns}
