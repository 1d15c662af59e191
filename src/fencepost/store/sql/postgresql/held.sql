SELECT id
FROM {outbox}
WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
