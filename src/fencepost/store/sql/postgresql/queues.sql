-- The queues that have something due, out of the next ones by name: two index probes a queue, whatever their
-- depth. A queue whose messages are all delayed, parked or dead costs its probes here, and no claim. What is
-- leased is due as well: its lease may have ended.
WITH RECURSIVE walk AS (
    (
        SELECT queue, 1 AS seen FROM {outbox}
        WHERE done_at IS NULL AND queue > %(after)s::text
        ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT o.queue FROM {outbox} AS o
        WHERE o.done_at IS NULL AND o.queue > w.queue
        ORDER BY o.queue LIMIT 1
    ), w.seen + 1
    FROM walk AS w WHERE w.queue IS NOT NULL AND w.seen < %(limit)s::int
),
found AS (
    SELECT w.queue, w.seen,
           -- Not EXISTS, which may be planned as one pass over everything that is due.
           (SELECT true FROM {outbox} AS o
            WHERE o.queue = w.queue AND o.done_at IS NULL AND o.available_at <= statement_timestamp()
            ORDER BY o.available_at LIMIT 1) AS due
    FROM walk AS w WHERE w.queue IS NOT NULL
)
-- Where the walk was cut off, the queue there comes along, due or not.
SELECT queue, due IS NOT NULL, seen = %(limit)s::int
FROM found
WHERE due IS NOT NULL OR seen = %(limit)s::int
