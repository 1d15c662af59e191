-- Among the newest messages, keys of which one committed before an earlier one: only rows that stand as they were
-- inserted still know their producer's transaction. Those are pending ones that were never claimed, but for the first
-- open row of each key, which may have been parked and promoted. (A parked row is known by its status.)
WITH newest AS MATERIALIZED (
    SELECT id, queue, ordering_key, status, lease_version, last_error, xmin
    FROM {outbox}
    ORDER BY id DESC
    LIMIT %(newest)s::int
),
open_row AS MATERIALIZED (
    SELECT newest.*, row_number() OVER (PARTITION BY queue, ordering_key ORDER BY id) AS place
    FROM newest
    WHERE ordering_key IS NOT NULL AND status <> 'done'
),
known AS MATERIALIZED (
    SELECT id, queue, ordering_key, pg_xact_commit_timestamp(xmin) AS committed_at
    FROM open_row
    WHERE place > 1 AND status = 'pending' AND lease_version = 0 AND last_error IS NULL
),
turn AS MATERIALIZED (
    SELECT id, queue, ordering_key, committed_at,
           max(committed_at) OVER (
               PARTITION BY queue, ordering_key ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS last_before
    FROM known
    WHERE committed_at IS NOT NULL
),
inverted AS MATERIALIZED (
    SELECT queue, ordering_key, max(id) AS id
    FROM turn
    WHERE committed_at < last_before
    GROUP BY queue, ordering_key
)
SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM inverted),
       example.queue, example.ordering_key, example.id
FROM (SELECT 1 AS n) AS one
LEFT JOIN (SELECT queue, ordering_key, id FROM inverted ORDER BY id DESC LIMIT 1) AS example ON true
