-- The first open row of each ordering key, key by key behind a place: one probe of the order index a key, however
-- much waits behind it. (With a queue, the walk's last row may stand in the next one.)
walk AS (
    (
        SELECT o.queue, o.ordering_key, o.id, o.status, o.available_at, o.created_at, o.attempts, o.reclaim_count,
               o.lease_until, o.last_error IS NOT NULL AS has_error, 1 AS seen
        FROM {outbox} AS o
        WHERE o.done_at IS NULL AND o.ordering_key IS NOT NULL
          AND (o.queue, o.ordering_key) > (%(after_queue)s::text, %(after_key)s::text)
        ORDER BY o.queue, o.ordering_key, o.id
        LIMIT 1
    )
    UNION ALL
    SELECT n.*, w.seen + 1
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT o.queue, o.ordering_key, o.id, o.status, o.available_at, o.created_at, o.attempts, o.reclaim_count,
               o.lease_until, o.last_error IS NOT NULL
        FROM {outbox} AS o
        WHERE o.done_at IS NULL AND o.ordering_key IS NOT NULL
          AND (o.queue, o.ordering_key) > (w.queue, w.ordering_key)
        ORDER BY o.queue, o.ordering_key, o.id
        LIMIT 1
    ) AS n
    WHERE w.seen < %(window)s::int AND (%(queue)s::text IS NULL OR w.queue = %(queue)s::text)
)
