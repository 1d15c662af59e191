-- Of many workers one gives the sign, and none waits for another.
WITH silent AS MATERIALIZED (
    SELECT name
    FROM {cron}
    WHERE name = ANY (%(names)s::text[])
      AND seen_at NOT BETWEEN statement_timestamp() - %(every)s::float8 * interval '1 second' AND statement_timestamp()
    FOR UPDATE SKIP LOCKED
)
UPDATE {cron}
SET seen_at = statement_timestamp()
WHERE name = ANY (ARRAY(SELECT name FROM silent))
RETURNING name
