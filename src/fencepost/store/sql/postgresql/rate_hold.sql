-- What a queue may still take of its rate: a bucket that holds what one second brings, at least one message (the
-- generic cell rate algorithm, ITU-T I.371). The row is locked until the claim beside it is charged. Nobody waits for
-- it: an operator's open transaction there must not hold up the claims of other queues. Null where somebody has it.
WITH held AS MATERIALIZED (
    SELECT floor(least(
        greatest(q.rate_per_second, 1::float8),
        q.rate_per_second * extract(epoch FROM clock_timestamp() - q.rate_spent_until)::float8 + 0.000001::float8
    ))::int AS left_over
    FROM {queue} AS q
    WHERE q.queue = %(queue)s::text AND q.rate_per_second IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT held.left_over
FROM {queue} AS q LEFT JOIN held ON true
WHERE q.queue = %(queue)s::text AND q.rate_per_second IS NOT NULL
