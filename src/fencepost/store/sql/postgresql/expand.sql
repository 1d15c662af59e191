-- Write a message for each destination of messages that this transaction has just closed as expanded. They keep the
-- identity and the content of their original, and are new in everything else.
INSERT INTO {outbox} (
    message_id, queue, event_type, aggregate_type, aggregate_id, ordering_key, key_sequence, payload, payload_bytes,
    content_type, headers, recovery_policy, created_at, routed
)
SELECT o.message_id, d.queue, o.event_type, o.aggregate_type, o.aggregate_id, o.ordering_key,
       d.key_sequence, o.payload, o.payload_bytes, o.content_type, o.headers, o.recovery_policy, o.created_at, true
FROM unnest(%(ids)s::bigint[], %(queues)s::text[], %(numbers)s::bigint[])
     WITH ORDINALITY AS d (id, queue, key_sequence, position)
JOIN {outbox} AS o ON o.id = d.id
-- Ids are drawn in the order of the originals.
ORDER BY d.position
