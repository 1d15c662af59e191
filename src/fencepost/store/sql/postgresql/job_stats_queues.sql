-- Open jobs alone, each kind by its own index, however long the history is.
SELECT queue,
    count(*) FILTER (WHERE NOT is_leased),
    count(*) FILTER (WHERE NOT is_leased AND available_at <= statement_timestamp()),
    count(*) FILTER (WHERE is_leased),
    count(*) FILTER (WHERE lease_expires_at < statement_timestamp()),
    (extract(epoch FROM statement_timestamp() - min(available_at) FILTER (
        WHERE NOT is_leased AND available_at <= statement_timestamp()
    )) * 1000000::numeric)::bigint
FROM (
    SELECT queue, available_at, false AS is_leased, NULL::timestamptz AS lease_expires_at
    FROM {job} WHERE status = 'queued' AND lane IS NULL AND reclaim_count = 0
    UNION ALL
    SELECT queue, available_at, false, NULL::timestamptz
    FROM {job} WHERE status = 'queued' AND lane IS NOT NULL AND reclaim_count = 0
    UNION ALL
    SELECT queue, available_at, false, NULL::timestamptz
    FROM {job} WHERE status = 'queued' AND reclaim_count > 0
    UNION ALL
    SELECT queue, available_at, true, lease_expires_at
    FROM {job} WHERE status = 'processing'
) AS open
GROUP BY queue
ORDER BY queue
