SET lease_version = o.lease_version + 1,
    reclaim_count = o.reclaim_count + CASE WHEN o.status = 'processing' THEN 1 ELSE 0 END,
    status = CASE WHEN o.attempts < %(max_attempts)s::int THEN 'processing' ELSE 'dead' END,
    attempts = CASE WHEN o.attempts < %(max_attempts)s::int THEN o.attempts + 1 ELSE o.attempts END,
    lease_owner = CASE WHEN o.attempts < %(max_attempts)s::int THEN %(owner)s::text ELSE o.lease_owner END,
    lease_until = CASE WHEN o.attempts < %(max_attempts)s::int
                       THEN statement_timestamp() + %(lease)s::float8 * interval '1 second' END,
    -- A limit that was lowered below the row's attempts: dead at its next claim, never left lying.
    available_at = CASE WHEN o.attempts < %(max_attempts)s::int THEN o.available_at ELSE {far} END,
    dead_at = CASE WHEN o.attempts < %(max_attempts)s::int THEN NULL ELSE statement_timestamp() END,
    outcome = CASE WHEN o.attempts < %(max_attempts)s::int THEN NULL ELSE 'exhausted' END
