SELECT fence, digest
FROM {inbox}
WHERE consumer = %(consumer)s::text AND message_id = %(message_id)s::text
