-- One bounded step, from the oldest on. What somebody is at just now is not old any more.
WITH old AS MATERIALIZED (
    SELECT receiver, resource
    FROM {fence}
    WHERE receiver = %(receiver)s::text
      AND admitted_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
      AND admitted_at >= timestamptz '1970-01-01 00:00:00+00' + %(after)s::float8 * interval '1 microsecond'
    ORDER BY admitted_at
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {fence} AS f
    USING old
    WHERE f.receiver = old.receiver AND f.resource = old.resource
    RETURNING f.admitted_at
)
SELECT count(*), (extract(epoch FROM max(admitted_at)) * 1000000::numeric)::bigint
FROM gone
