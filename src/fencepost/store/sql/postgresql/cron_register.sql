INSERT INTO {cron} (name, task, expression, timezone, last_tick, seen_at)
VALUES (%(name)s::text, %(task)s::text, %(expression)s::text, %(timezone)s::text,
        statement_timestamp(), statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING name
