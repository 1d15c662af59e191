j.status, j.outcome, j.attempts, j.max_attempts, j.recovery_policy, j.reclaim_count, j.fence, j.reserved_by,
    (extract(epoch FROM j.reserved_at) * 1000000::numeric)::bigint,
    (extract(epoch FROM j.heartbeat_at) * 1000000::numeric)::bigint,
    (extract(epoch FROM j.lease_expires_at) * 1000000::numeric)::bigint,
    j.progress::text, j.last_error,
    (extract(epoch FROM j.finished_at) * 1000000::numeric)::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint AS seen_at
