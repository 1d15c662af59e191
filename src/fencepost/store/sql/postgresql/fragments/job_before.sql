pg_catalog.json_build_object(
        'status', status, 'outcome', outcome, 'attempts', attempts, 'reclaim_count', reclaim_count, 'fence', fence,
        'attempt_token', attempt_token, 'reserved_by', reserved_by, 'reserved_at', reserved_at,
        'heartbeat_at', heartbeat_at, 'finished_at', finished_at, 'last_error', last_error
    ) AS before
