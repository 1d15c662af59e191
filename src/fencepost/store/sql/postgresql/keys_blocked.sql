-- The next ordering keys whose head does not move, and where the walk over them ended.
WITH RECURSIVE
{keys_walk},
head AS MATERIALIZED (
    SELECT walk.*,
           CASE
               WHEN status = 'dead' THEN 'dead'
               WHEN status = 'blocked' THEN 'stranded'
               WHEN status = 'processing' AND lease_until >= statement_timestamp() THEN 'leased'
               WHEN status = 'processing' THEN 'expired'
               WHEN available_at > statement_timestamp() AND attempts > 0 THEN 'backoff'
               WHEN available_at > statement_timestamp() AND has_error THEN 'deferred'
               WHEN available_at > statement_timestamp() THEN 'delayed'
               WHEN reclaim_count > 0 THEN 'suspect'
           END AS reason
    FROM walk
    WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
),
stuck AS MATERIALIZED (
    SELECT *
    FROM head
    WHERE reason IS NOT NULL
      AND (reason <> 'leased' OR %(include_leased)s::boolean)
      AND (reason IN ('dead', 'stranded') OR {keys_follower} IS NOT NULL)
    ORDER BY seen
    LIMIT %(limit)s::int
)
SELECT ended.queue, ended.ordering_key, ended.seen, found.*
FROM (SELECT queue, ordering_key, seen FROM walk ORDER BY seen DESC LIMIT 1) AS ended
LEFT JOIN (
    SELECT head.queue AS of_queue, head.ordering_key AS of_key, head.id, head.reason, o.outcome, o.last_error,
           (extract(epoch FROM statement_timestamp() - head.created_at) * 1000000::numeric)::bigint,
           CASE WHEN head.reason IN ('backoff', 'deferred', 'delayed') THEN
               (extract(epoch FROM head.available_at - statement_timestamp()) * 1000000::numeric)::bigint END,
           o.lease_owner,
           (extract(epoch FROM head.lease_until - statement_timestamp()) * 1000000::numeric)::bigint,
           (SELECT count(*) FROM (
                SELECT 1 FROM {outbox} AS f
                WHERE f.queue = head.queue AND f.ordering_key >= head.ordering_key
                  AND f.ordering_key <= head.ordering_key AND f.ordering_key IS NOT NULL AND f.done_at IS NULL
                  AND f.id > head.id
                ORDER BY f.ordering_key, f.id
                LIMIT %(cap)s::int + 1
            ) AS behind)
    FROM stuck AS head JOIN {outbox} AS o ON o.id = head.id
    ORDER BY head.seen
) AS found ON true
ORDER BY found.of_queue, found.of_key
