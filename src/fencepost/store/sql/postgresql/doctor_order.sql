-- Among the newest messages, keys of which one was delivered while an earlier one was not. (What an operator skipped
-- was never delivered; what is still open counts as delivered last.)
WITH newest AS MATERIALIZED (
    SELECT id, queue, ordering_key, status, outcome, done_at
    FROM {outbox}
    ORDER BY id DESC
    LIMIT %(newest)s::int
),
turn AS MATERIALIZED (
    SELECT id, queue, ordering_key, status, done_at,
           max(CASE WHEN status = 'done' THEN done_at ELSE timestamptz 'infinity' END) OVER earlier AS last_before
    FROM newest
    WHERE ordering_key IS NOT NULL AND outcome IS DISTINCT FROM 'skipped'
    WINDOW earlier AS (PARTITION BY queue, ordering_key ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
inverted AS MATERIALIZED (
    SELECT queue, ordering_key, max(id) AS id
    FROM turn
    WHERE status = 'done' AND done_at < last_before
    GROUP BY queue, ordering_key
)
SELECT (SELECT count(*) FROM turn WHERE status = 'done'), (SELECT count(*) FROM inverted),
       example.queue, example.ordering_key, example.id
FROM (SELECT 1 AS n) AS one
LEFT JOIN (SELECT queue, ordering_key, id FROM inverted ORDER BY id DESC LIMIT 1) AS example ON true
