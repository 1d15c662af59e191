UPDATE {outbox}
SET status = 'pending',
    lease_until = NULL,
    attempts = CASE WHEN %(refund_attempt)s::boolean THEN greatest(0, attempts - 1) ELSE attempts END,
    available_at = statement_timestamp()
        + (%(delays)s::float8[])[pg_catalog.array_position(%(ids)s::bigint[], id)] * interval '1 second',
    last_error = (%(errors)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
RETURNING id
