-- Waits for another transaction that is at the same message, until that has committed or rolled back.
INSERT INTO {inbox} (consumer, message_id, fence, digest)
VALUES (%(consumer)s::text, %(message_id)s::text, %(fence)s::bigint, %(digest)s::bytea)
ON CONFLICT DO NOTHING
RETURNING true
