-- Of each queue with open messages: what waits, the lease that ended first, the oldest message, and the pause.
SELECT o.queue, o.waiting, o.expired,
       (extract(epoch FROM statement_timestamp() - o.ended_at) * 1000000::numeric)::bigint,
       (extract(epoch FROM statement_timestamp() - o.oldest) * 1000000::numeric)::bigint,
       coalesce(q.paused, false), q.changed_by,
       (extract(epoch FROM statement_timestamp() - q.changed_at) * 1000000::numeric)::bigint
FROM (
    SELECT queue,
           count(*) FILTER (WHERE status <> 'dead') AS waiting,
           count(*) FILTER (WHERE status = 'processing' AND lease_until < statement_timestamp()) AS expired,
           min(lease_until) FILTER (WHERE status = 'processing' AND lease_until < statement_timestamp()) AS ended_at,
           min(CASE WHEN attempts > 0 THEN created_at ELSE available_at END) FILTER (
               WHERE status IN ('pending', 'processing')
                 AND (attempts > 0 OR available_at <= statement_timestamp())
           ) AS oldest
    FROM {outbox}
    WHERE done_at IS NULL
    GROUP BY queue
) AS o
LEFT JOIN {queue} AS q ON q.queue = o.queue
ORDER BY o.queue
