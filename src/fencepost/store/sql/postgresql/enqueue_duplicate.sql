SELECT id, message_id::text,
       event_type = %(event_type)s::text
       AND payload::text IS NOT DISTINCT FROM %(payload)s::text
       AND payload_bytes IS NOT DISTINCT FROM %(payload_bytes)s::bytea
FROM {outbox}
WHERE queue = %(queue)s::text AND dedupe_key = %(dedupe_key)s::text
