UPDATE {outbox}
SET status = 'done', outcome = %(outcome)s::text, done_at = statement_timestamp(), lease_until = NULL
WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
RETURNING id
