o.id, o.message_id::text, o.queue, o.event_type, o.aggregate_type, o.aggregate_id, o.ordering_key,
    o.payload::text, o.payload_bytes, o.content_type, o.headers::text,
    (extract(epoch FROM o.created_at) * 1000000::numeric)::bigint
