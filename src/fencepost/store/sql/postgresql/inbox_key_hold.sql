SELECT last_sequence
FROM {inbox_key}
WHERE consumer = %(consumer)s::text AND key = %(key)s::text
FOR UPDATE
