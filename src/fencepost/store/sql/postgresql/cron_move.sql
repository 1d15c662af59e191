-- Never back, whatever the clock does.
UPDATE {cron}
SET task = %(task)s::text, expression = %(expression)s::text, timezone = %(timezone)s::text,
    last_tick = greatest(last_tick, %(last_tick)s::text::timestamptz), seen_at = statement_timestamp()
WHERE name = %(name)s::text
RETURNING name
