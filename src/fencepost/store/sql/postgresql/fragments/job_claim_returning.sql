RETURNING {job_columns},
    j.status, j.attempt_token::text AS token, j.fence, j.attempts, j.max_attempts, j.recovery_policy, j.reclaim_count,
    (extract(epoch FROM statement_timestamp() - j.created_at) * 1000000::numeric)::bigint AS age
