-- What is in flight and looks odd: half of its lease went by without a heartbeat, or it runs for long, or it came back.
SELECT {job_columns_brief}, {job_life}, NULL::text AS result, 0::bigint AS beside
FROM {job} AS j
WHERE j.status = 'processing'
  AND (j.heartbeat_at + (j.lease_expires_at - j.heartbeat_at) / 2::float8 < statement_timestamp()
       OR j.reserved_at < statement_timestamp() - %(running)s::float8 * interval '1 second'
       OR j.reclaim_count >= %(reclaims)s::int)
ORDER BY j.lease_expires_at, j.id
LIMIT %(limit)s::int
