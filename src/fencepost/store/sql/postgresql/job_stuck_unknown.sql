-- The newest failed ones of which nobody knows what they did.
SELECT {job_columns_brief}, {job_life}, NULL::text AS result, 0::bigint AS beside
FROM (
    SELECT f.*
    FROM {job} AS f
    WHERE f.status = 'failed'
    ORDER BY f.finished_at DESC, f.id DESC
    LIMIT %(window)s::int
) AS j
WHERE j.outcome = 'unknown_outcome'
LIMIT %(limit)s::int
