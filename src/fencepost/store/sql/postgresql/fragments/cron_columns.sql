name, task, expression, timezone,
    (extract(epoch FROM last_tick) * 1000000::numeric)::bigint,
    (extract(epoch FROM seen_at) * 1000000::numeric)::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint
