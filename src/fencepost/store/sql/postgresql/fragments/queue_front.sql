-- Leased rows sit at the front of the ready index, hence the bounded walk over its first rows (not
-- materialized: copying the whole window costs as much as reading it).
front AS (
    SELECT id, status, lease_until, reclaim_count, attempts, recovery_policy, available_at, ordering_key
    FROM {outbox}
    WHERE queue = %(queue)s::text
      AND done_at IS NULL
      AND available_at <= statement_timestamp()
    ORDER BY available_at, id
    LIMIT %(window)s::int
)
