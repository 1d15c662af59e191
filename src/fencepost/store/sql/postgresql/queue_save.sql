UPDATE {queue} AS q
SET paused = %(paused)s::boolean,
    weight = %(weight)s::int,
    concurrency = %(concurrency)s::int,
    lease_seconds = %(lease)s::float8,
    publish_timeout_seconds = %(publish_timeout)s::float8,
    max_attempts = %(max_attempts)s::int,
    backoff_base_seconds = %(backoff_base)s::float8,
    backoff_cap_seconds = %(backoff_cap)s::float8,
    sequenced = %(sequenced)s::boolean,
    changed_at = statement_timestamp(),
    changed_by = %(actor)s::text
WHERE q.queue = %(queue)s::text
RETURNING {queue_columns}
