-- One bounded step: the oldest finished ones first, and only what is done; failed jobs leave by an operator's hand.
WITH old AS MATERIALIZED (
    SELECT id
    FROM {job}
    WHERE status = 'done' AND finished_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
    ORDER BY finished_at, id
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {job} WHERE id = ANY (ARRAY(SELECT id FROM old)) AND status = 'done' RETURNING id
)
SELECT count(*) FROM gone
