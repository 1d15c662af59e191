UPDATE {outbox}
SET status = 'pending',
    lease_until = NULL,
    attempts = CASE WHEN %(refund_attempt)s::boolean THEN greatest(0, attempts - 1) ELSE attempts END
WHERE id = ANY (%(ids)s::bigint[]) AND {message_fence}
RETURNING id
