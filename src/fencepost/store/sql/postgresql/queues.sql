-- The queues that hold open messages: one index probe each, whatever their depth.
WITH RECURSIVE open_queue AS (
    (SELECT queue FROM {outbox} WHERE done_at IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT o.queue FROM {outbox} AS o
        WHERE o.done_at IS NULL AND o.queue > q.queue
        ORDER BY o.queue LIMIT 1
    )
    FROM open_queue AS q WHERE q.queue IS NOT NULL
)
SELECT queue FROM open_queue WHERE queue IS NOT NULL
