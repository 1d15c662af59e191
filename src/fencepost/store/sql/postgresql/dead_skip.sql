WITH {dead_target},
changed AS (
    UPDATE {outbox} AS o
    SET status = 'done', outcome = 'skipped', done_at = statement_timestamp(),
        lease_version = {next_token}
    FROM target
    WHERE o.id = target.id AND o.status = 'dead'
    RETURNING o.id
)
INSERT INTO {audit} (actor, action, outbox_id, message_id, reason, before)
SELECT %(actor)s::text, 'skip', target.id, target.message_id, %(reason)s::text, target.before
FROM target JOIN changed USING (id)
RETURNING outbox_id
