{message_columns},
    o.status, o.outcome, o.attempts, o.reclaim_count, o.lease_version, o.lease_owner, o.last_error,
    (extract(epoch FROM o.dead_at) * 1000000::numeric)::bigint
