q.queue, q.paused, q.weight, q.concurrency, q.lease_seconds, q.publish_timeout_seconds, q.max_attempts,
    q.backoff_base_seconds, q.backoff_cap_seconds, q.sequenced, q.rate_per_second, q.breaker_failures,
    q.breaker_cap_seconds, q.pause_reason,
    (extract(epoch FROM q.changed_at) * 1000000::numeric)::bigint, q.changed_by,
    q.ledger, q.breaker_seen, q.breaker_version, q.breaker_trips, q.breaker_error,
    extract(epoch FROM clock_timestamp() - q.breaker_opened_at)::float8,
    extract(epoch FROM q.breaker_probe_at - clock_timestamp())::float8
