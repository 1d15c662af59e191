q.queue, q.paused, q.weight, q.concurrency, q.lease_seconds, q.publish_timeout_seconds, q.max_attempts,
    q.backoff_base_seconds, q.backoff_cap_seconds, q.sequenced,
    (extract(epoch FROM q.changed_at) * 1000000::numeric)::bigint, q.changed_by
