SELECT {queue_columns}
FROM {queue} AS q
ORDER BY q.queue
