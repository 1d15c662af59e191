SET lease_version = {next_token},
    reclaim_count = least(o.reclaim_count + CASE WHEN o.status = 'processing' THEN 1 ELSE 0 END, 1000000000),
    status = CASE WHEN {claimable} THEN 'processing' ELSE 'dead' END,
    attempts = CASE WHEN {claimable} THEN o.attempts + 1 ELSE o.attempts END,
    lease_owner = CASE WHEN {claimable} THEN %(owner)s::text ELSE o.lease_owner END,
    lease_until = CASE WHEN {claimable}
                       THEN statement_timestamp() + %(lease)s::float8 * interval '1 second' END,
    -- A limit that was lowered below the row's attempts, or a token at its end: dead at its next claim, never
    -- left lying. A parked row has no place of its own: it gets that of its creation.
    available_at = CASE WHEN NOT ({claimable}) THEN {far}
                        WHEN o.status = 'blocked' THEN least(o.created_at, statement_timestamp())
                        ELSE o.available_at END,
    dead_at = CASE WHEN {claimable} THEN NULL ELSE statement_timestamp() END,
    outcome = CASE WHEN {claimable} THEN NULL ELSE 'exhausted' END
