-- What a queue may still take of its rate: a bucket that holds what one second brings, at least one message (the
-- generic cell rate algorithm, ITU-T I.371). The row is locked until the claim beside it is charged.
SELECT floor(least(
    greatest(q.rate_per_second, 1::float8),
    q.rate_per_second * extract(epoch FROM clock_timestamp() - q.rate_spent_until)::float8 + 0.000001::float8
))::int
FROM {queue} AS q
WHERE q.queue = %(queue)s::text AND q.rate_per_second IS NOT NULL
FOR NO KEY UPDATE
