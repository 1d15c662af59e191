SELECT {cron_columns}
FROM {cron}
WHERE %(names)s::text[] IS NULL OR name = ANY (%(names)s::text[])
ORDER BY name
