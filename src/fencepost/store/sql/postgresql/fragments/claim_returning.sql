RETURNING {message_columns},
    o.status, o.lease_version, o.attempts, o.recovery_policy, o.reclaim_count,
    (extract(epoch FROM statement_timestamp() - o.created_at) * 1000000::numeric)::bigint AS age_us,
    (extract(epoch FROM o.available_at) * 1000000::numeric)::bigint AS available_at_us,
    o.routed,
    coalesce((SELECT q.ledger FROM {queue} AS q WHERE q.queue = %(queue)s::text), false) AS ledger
