-- Draw the next numbers of ordering keys; the caller holds their producers' locks. A transaction that rolls back
-- gives them back, so that no number is left out.
INSERT INTO {key} AS k (queue, ordering_key, last_sequence)
SELECT n.queue, n.ordering_key, n.many
FROM unnest(%(queues)s::text[], %(keys)s::text[], %(counts)s::int[]) AS n (queue, ordering_key, many)
ON CONFLICT (queue, ordering_key) DO UPDATE SET last_sequence = k.last_sequence + excluded.last_sequence
RETURNING k.queue, k.ordering_key, k.last_sequence
