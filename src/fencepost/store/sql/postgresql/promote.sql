-- Where the first open row of a key is parked, make it due, at the place of its creation: what waited longest is
-- served first. (A claim takes the parked rows behind it along.) The caller has closed the row before it, holds the
-- finalizers' lock of the key, and sends this as a later statement: its snapshot must show what was parked since.
WITH head AS MATERIALIZED (
    SELECT h.id
    FROM (
        SELECT DISTINCT queue, ordering_key
        FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS u (queue, ordering_key)
    ) AS k
    CROSS JOIN LATERAL (
        SELECT id, status
        FROM {outbox}
        WHERE queue = k.queue AND {of_key}
        ORDER BY ordering_key, id
        LIMIT 1
    ) AS h
    WHERE h.status = 'blocked'
)
UPDATE {outbox}
SET status = 'pending', available_at = least(created_at, statement_timestamp())
WHERE id = ANY (ARRAY(SELECT id FROM head)) AND status = 'blocked'
RETURNING id
