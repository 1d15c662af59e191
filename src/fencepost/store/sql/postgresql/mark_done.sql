UPDATE {outbox}
SET status = 'done', outcome = %(outcome)s::text, done_at = statement_timestamp(), lease_until = NULL
WHERE id = ANY (%(ids)s::bigint[]) AND lease_version = %(token)s::bigint AND status = 'processing'
RETURNING id
