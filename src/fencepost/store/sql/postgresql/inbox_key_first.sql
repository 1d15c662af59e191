-- Waits for another transaction that brings the first message of the key, as well.
INSERT INTO {inbox_key} (consumer, key, last_sequence)
VALUES (%(consumer)s::text, %(key)s::text, %(sequence)s::bigint)
ON CONFLICT DO NOTHING
RETURNING true
