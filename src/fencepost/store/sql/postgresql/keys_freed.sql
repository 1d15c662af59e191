-- What waited behind messages that an operator has just changed: in each of their keys the rows behind, where the
-- first open row is neither before them nor dead itself.
SELECT k.queue, k.ordering_key, b.many
FROM (
    SELECT queue, ordering_key, min(id) AS id
    FROM {outbox}
    WHERE id = ANY (%(ids)s::bigint[]) AND ordering_key IS NOT NULL
    GROUP BY queue, ordering_key
) AS k
CROSS JOIN LATERAL (
    SELECT id, status
    FROM {outbox}
    WHERE queue = k.queue AND {of_key}
    ORDER BY ordering_key, id
    LIMIT 1
) AS head
CROSS JOIN LATERAL (
    SELECT count(*) AS many FROM (
        SELECT 1
        FROM {outbox}
        WHERE queue = k.queue AND {of_key}
          AND id > k.id
        ORDER BY ordering_key, id
        LIMIT %(cap)s::int + 1
    ) AS waiting
) AS b
WHERE head.id >= k.id AND head.status <> 'dead' AND b.many > 0
