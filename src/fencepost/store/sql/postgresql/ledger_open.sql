INSERT INTO {attempt} (kind, row_id, token, queue, attempt, worker)
SELECT %(kind)s::text, b.row_id, b.token, b.queue, b.attempt, b.worker
FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(queues)s::text[], %(attempts)s::int[], %(workers)s::text[])
     AS b (row_id, token, queue, attempt, worker)
ORDER BY b.row_id
ON CONFLICT (kind, row_id, token) DO NOTHING
