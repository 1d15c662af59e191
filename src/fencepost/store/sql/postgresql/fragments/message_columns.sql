o.id, o.message_id::text AS message_id, o.queue, o.event_type, o.aggregate_type, o.aggregate_id, o.ordering_key,
    o.payload::text AS payload, o.payload_bytes, o.content_type, o.headers::text AS headers,
    (extract(epoch FROM o.created_at) * 1000000::numeric)::bigint AS created_at_us, o.key_sequence
