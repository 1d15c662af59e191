UPDATE {queue} AS q
SET paused = %(paused)s::boolean,
    pause_reason = %(pause_reason)s::text,
    weight = %(weight)s::int,
    concurrency = %(concurrency)s::int,
    lease_seconds = %(lease)s::float8,
    publish_timeout_seconds = %(publish_timeout)s::float8,
    max_attempts = %(max_attempts)s::int,
    backoff_base_seconds = %(backoff_base)s::float8,
    backoff_cap_seconds = %(backoff_cap)s::float8,
    sequenced = %(sequenced)s::boolean,
    ledger = %(ledger)s::boolean,
    rate_per_second = %(rate)s::float8,
    breaker_failures = %(breaker_failures)s::int,
    breaker_cap_seconds = %(breaker_cap)s::float8,
    changed_at = statement_timestamp(),
    changed_by = %(actor)s::text
WHERE q.queue = %(queue)s::text
RETURNING {queue_columns}
