WITH inserted AS (
    INSERT INTO {outbox} (
        message_id, queue, event_type, aggregate_type, aggregate_id, ordering_key, key_sequence, payload,
        payload_bytes, content_type, headers, dedupe_key, recovery_policy, routed, available_at
    ) VALUES (
        %(message_id)s::text::uuid, %(queue)s::text, %(event_type)s::text, %(aggregate_type)s::text,
        %(aggregate_id)s::text, %(ordering_key)s::text, %(key_sequence)s::bigint, %(payload)s::text::json,
        %(payload_bytes)s::bytea, %(content_type)s::text,
        %(headers)s::text::json, %(dedupe_key)s::text, %(recovery)s::text, %(routed)s::boolean,
        coalesce(
            %(available_at)s::text::timestamptz,
            statement_timestamp() + %(delay)s::float8 * interval '1 second'
        )
    )
    -- Without naming an index: a partitioned outbox has none that is unique but that of the id.
    ON CONFLICT DO NOTHING
    RETURNING id, available_at <= statement_timestamp() AS is_due
)
-- Nobody has to be woken for a message that is not due yet.
SELECT id,
    CASE WHEN %(channel)s::text IS NULL OR NOT is_due THEN NULL ELSE
    {notice}
    END
FROM inserted
