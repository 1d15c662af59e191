SELECT queue,
       count(*) FILTER (WHERE status = 'pending'),
       count(*) FILTER (WHERE status = 'processing'),
       count(*) FILTER (WHERE status = 'blocked'),
       count(*) FILTER (WHERE status = 'dead'),
       count(*) FILTER (WHERE status = 'processing' AND lease_until < statement_timestamp()),
       -- A message that was tried counts from its creation: its backoff must not make it look young.
       (extract(epoch FROM statement_timestamp() - min(
            CASE WHEN attempts > 0 THEN created_at ELSE available_at END
       ) FILTER (WHERE status IN ('pending', 'processing')
                   AND (attempts > 0 OR available_at <= statement_timestamp()))) * 1000000::numeric)::bigint
FROM {outbox}
WHERE done_at IS NULL
GROUP BY queue
ORDER BY queue
