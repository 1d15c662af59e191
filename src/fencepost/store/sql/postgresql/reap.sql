-- Bury the messages whose lease expired and that nobody may take over: their attempts are spent, or their
-- recovery policy leaves an unknown outcome to a person. (With 'verify' that is so once nobody may ask any more.) A queue's own limit of attempts comes before the caller's.
WITH
{queue_front},
expired AS MATERIALIZED (
    SELECT id
    FROM {outbox}
    WHERE id = ANY (ARRAY(
            SELECT id FROM front
            WHERE status = 'processing' AND lease_until < statement_timestamp()
              AND (attempts >= {attempts_limit} OR recovery_policy = 'manual')
            LIMIT %(limit)s::int
        ))
      AND status = 'processing'
      AND lease_until < statement_timestamp()
      AND (attempts >= {attempts_limit} OR recovery_policy = 'manual')
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
UPDATE {outbox} AS o
SET status = 'dead',
    outcome = CASE WHEN o.recovery_policy = 'auto' THEN 'crashed' ELSE 'unknown_outcome' END,
    dead_at = statement_timestamp(),
    available_at = {far},
    lease_until = NULL,
    lease_version = {next_token},
    last_error = left(
        'the lease of worker ' || o.lease_owner || ' expired on attempt ' || o.attempts::text
        || ': it probably crashed or froze; the message may have been delivered all the same'
        || coalesce(E'\nbefore: ' || o.last_error, ''), 4000)
WHERE o.id = ANY (ARRAY(SELECT id FROM expired))
RETURNING o.id, o.outcome
