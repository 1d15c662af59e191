SELECT id
FROM {outbox}
WHERE id = ANY (%(ids)s::bigint[]) AND lease_version = %(token)s::bigint AND status = 'processing'
