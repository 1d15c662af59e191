-- The producers' locks of ordering keys (see lock_keys.sql), as far as nobody holds them: a worker must not wait for a
-- producer's transaction.
WITH k AS MATERIALIZED (
    SELECT queue, ordering_key,
           hashtextextended(%(table)s::text || ' ' || queue || ' ' || ordering_key, %(seed)s::bigint) AS n
    FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS given (queue, ordering_key)
),
tried AS MATERIALIZED (
    SELECT n, pg_try_advisory_xact_lock(n) AS got FROM (SELECT DISTINCT n FROM k) AS number
)
SELECT k.queue, k.ordering_key, tried.got, coalesce(q.sequenced, false)
FROM k JOIN tried USING (n) LEFT JOIN {queue} AS q ON q.queue = k.queue
