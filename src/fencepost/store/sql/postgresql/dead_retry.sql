WITH {dead_target},
changed AS (
    UPDATE {outbox} AS o
    SET status = 'pending', outcome = NULL, dead_at = NULL, available_at = statement_timestamp(),
        attempts = 0, reclaim_count = 0, lease_version = {next_token}
    FROM target
    WHERE o.id = target.id AND o.status = 'dead'
    RETURNING o.id
)
INSERT INTO {audit} (actor, action, outbox_id, message_id, reason, before)
SELECT %(actor)s::text, 'retry', target.id, target.message_id, %(reason)s::text, target.before
FROM target JOIN changed USING (id)
RETURNING outbox_id
