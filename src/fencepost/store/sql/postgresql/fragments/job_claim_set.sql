SET status = CASE WHEN {job_claimable} THEN 'processing' ELSE 'failed' END,
    attempts = CASE WHEN {job_claimable} THEN j.attempts + 1 ELSE j.attempts END,
    fence = least(j.fence + 1, 4611686018427387904),
    attempt_token = (SELECT token FROM fresh),
    reserved_by = CASE WHEN {job_claimable} THEN %(owner)s::text ELSE j.reserved_by END,
    reserved_at = CASE WHEN {job_claimable} THEN statement_timestamp() END,
    heartbeat_at = CASE WHEN {job_claimable} THEN statement_timestamp() ELSE j.heartbeat_at END,
    -- Each task has a lease of its own; one that this worker does not know is given back at once.
    lease_expires_at = CASE WHEN {job_claimable} THEN statement_timestamp() + interval '1 second' * coalesce(
        (%(leases)s::float8[])[pg_catalog.array_position(%(tasks)s::text[], j.task)], %(lease)s::float8) END,
    progress = CASE WHEN {job_claimable} THEN NULL ELSE j.progress END,
    -- A limit that was lowered below the row's attempts: failed at its next claim, never left lying.
    outcome = CASE WHEN {job_claimable} THEN NULL ELSE 'exhausted' END,
    finished_at = CASE WHEN {job_claimable} THEN NULL ELSE statement_timestamp() END,
    last_error = CASE WHEN {job_claimable} THEN j.last_error ELSE left(
        'not begun: ' || j.attempts::text || ' attempts were made, of at most ' || j.max_attempts::text
        || coalesce(E'\nbefore: ' || j.last_error, ''), 4000) END
