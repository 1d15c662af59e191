UPDATE {inbox_key}
SET last_sequence = %(sequence)s::bigint, accepted_at = statement_timestamp()
WHERE consumer = %(consumer)s::text AND key = %(key)s::text
RETURNING true
