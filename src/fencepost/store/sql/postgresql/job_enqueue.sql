WITH inserted AS (
    INSERT INTO {job} (
        job_id, queue, task, args, headers, unique_key, lane, recovery_policy, max_attempts, available_at
    ) VALUES (
        %(job_id)s::text::uuid, %(queue)s::text, %(task)s::text, %(args)s::text::json, %(headers)s::text::json,
        %(unique_key)s::text, %(lane)s::text, %(recovery)s::text, %(max_attempts)s::int,
        coalesce(
            %(available_at)s::text::timestamptz,
            statement_timestamp() + %(delay)s::float8 * interval '1 second'
        )
    )
    ON CONFLICT DO NOTHING
    RETURNING id, available_at <= statement_timestamp() AS is_due
)
-- Nobody has to be woken for a job that is not due yet.
SELECT id,
    CASE WHEN %(channel)s::text IS NULL OR NOT is_due THEN NULL ELSE
    {notice}
    END
FROM inserted
