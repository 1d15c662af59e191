INSERT INTO {outbox} (
    message_id, queue, event_type, aggregate_type, aggregate_id, ordering_key, key_sequence, payload, payload_bytes,
    content_type, headers, dedupe_key, recovery_policy, routed, available_at
)
SELECT d.message_id::uuid, d.queue, d.event_type, d.aggregate_type, d.aggregate_id, d.ordering_key,
       d.key_sequence, d.payload::json, d.payload_bytes, d.content_type, d.headers::json, d.dedupe_key, d.recovery, d.routed,
       coalesce(d.available_at::timestamptz, statement_timestamp() + d.delay * interval '1 second')
FROM unnest(
    %(message_id)s::text[], %(queue)s::text[], %(event_type)s::text[], %(aggregate_type)s::text[],
    %(aggregate_id)s::text[], %(ordering_key)s::text[], %(key_sequence)s::bigint[], %(payload)s::text[], %(payload_bytes)s::bytea[], %(content_type)s::text[],
    %(headers)s::text[], %(dedupe_key)s::text[], %(recovery)s::text[], %(routed)s::boolean[], %(available_at)s::text[],
    %(delay)s::float8[]
) WITH ORDINALITY AS d (
    message_id, queue, event_type, aggregate_type, aggregate_id, ordering_key, key_sequence, payload, payload_bytes,
    content_type, headers, dedupe_key, recovery, routed, available_at, delay, position
)
-- Ids are drawn in the caller's order.
ORDER BY d.position
-- Without naming an index: a partitioned outbox has none that is unique but that of the id.
ON CONFLICT DO NOTHING
RETURNING id, message_id::text, queue, available_at <= statement_timestamp()
