UPDATE {outbox}
SET status = 'dead',
    outcome = %(outcome)s::text,
    dead_at = statement_timestamp(),
    available_at = {far},
    lease_until = NULL,
    last_error = (%(errors)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
RETURNING id
