-- One bounded step, from the oldest on, beginning where the last one ended.
WITH old AS MATERIALIZED (
    SELECT consumer, message_id
    FROM {inbox}
    WHERE consumer = %(consumer)s::text
      AND accepted_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
      AND accepted_at >= timestamptz '1970-01-01 00:00:00+00' + %(after)s::float8 * interval '1 microsecond'
    ORDER BY accepted_at
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {inbox} AS i
    USING old
    WHERE i.consumer = old.consumer AND i.message_id = old.message_id
    RETURNING i.accepted_at
)
SELECT count(*), (extract(epoch FROM max(accepted_at)) * 1000000::numeric)::bigint
FROM gone
