-- Finalize ordered messages: behind the fence, and only in their turn, which is when every open row before them
-- in their key is finalized with them. The caller holds the finalizers' locks of the keys.
-- The rows are locked before their turn is worked out: were one of them taken over in between, those behind it
-- would be finalized before it.
WITH held AS MATERIALIZED (
    SELECT id, queue, ordering_key
    FROM {outbox}
    WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence_each}
    ORDER BY id
    FOR UPDATE
),
mine AS MATERIALIZED (
    SELECT id, queue, ordering_key, row_number() OVER (PARTITION BY queue, ordering_key ORDER BY id) AS place
    FROM held
),
open_row AS MATERIALIZED (
    SELECT o.id, o.place
    FROM (SELECT queue, ordering_key, count(*) AS many FROM mine GROUP BY queue, ordering_key) AS k
    CROSS JOIN LATERAL (
        SELECT id, row_number() OVER (ORDER BY ordering_key, id) AS place
        FROM {outbox}
        WHERE queue = k.queue AND {of_key}
        ORDER BY ordering_key, id
        LIMIT k.many
    ) AS o
)
UPDATE {outbox}
SET status = 'done',
    outcome = (%(outcomes)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)],
    done_at = statement_timestamp(),
    lease_until = NULL
WHERE id = ANY (ARRAY(SELECT m.id FROM mine AS m JOIN open_row AS o ON o.id = m.id AND o.place = m.place))
  AND {message_fence_each}
RETURNING id
