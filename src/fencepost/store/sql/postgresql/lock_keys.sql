-- Take the transaction lock of each ordering key, in one order whoever asks, and say which of the queues count.
-- Two kinds of locks, told apart by the seed: producers of one key wait for each other from before their id is
-- drawn until they commit; finalizes of one key wait for each other, and never for a producer.
WITH number AS MATERIALIZED (
    SELECT DISTINCT hashtextextended(%(table)s::text || ' ' || k.queue || ' ' || k.ordering_key, %(seed)s::bigint) AS n
    FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS k (queue, ordering_key)
),
locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(n)::text AS done FROM (SELECT n FROM number ORDER BY n OFFSET 0) AS sorted
)
-- A left join, under which no plan can look at the queues first and, finding none, leave the locks out.
SELECT q.queue, current_setting('transaction_isolation'::text)
FROM (SELECT count(*) AS n FROM locked) AS first
LEFT JOIN {queue} AS q ON first.n >= 0 AND q.queue = ANY (%(queues)s::text[]) AND q.sequenced
