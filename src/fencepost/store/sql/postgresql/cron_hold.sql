-- Whoever holds the row enqueues its ticks, and nobody waits for that: the others come by again.
SELECT {cron_columns}
FROM {cron}
WHERE name = %(name)s::text
FOR UPDATE SKIP LOCKED
