UPDATE {queue} AS q
SET rate_spent_until = greatest(
        q.rate_spent_until, clock_timestamp() - greatest(1::float8, 1::float8 / q.rate_per_second) * interval '1 second'
    ) + %(messages)s::int / q.rate_per_second * interval '1 second'
WHERE q.queue = %(queue)s::text AND q.rate_per_second IS NOT NULL
