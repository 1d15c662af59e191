-- One bounded step, from the oldest on.
WITH old AS MATERIALIZED (
    SELECT consumer, message_id
    FROM {inbox}
    WHERE consumer = %(consumer)s::text
      AND accepted_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
    ORDER BY accepted_at
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {inbox} AS i
    USING old
    WHERE i.consumer = old.consumer AND i.message_id = old.message_id
    RETURNING true
)
SELECT count(*) FROM gone
