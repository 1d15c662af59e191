-- One step from the oldest attempt on. What somebody else is at is passed over.
WITH looked AS MATERIALIZED (
    SELECT id, started_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second' AS is_old
    FROM {attempt}
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(limit)s::int
),
old AS MATERIALIZED (
    SELECT id
    FROM {attempt}
    WHERE id = ANY (ARRAY(SELECT id FROM looked WHERE is_old))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {attempt} WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT (SELECT count(*) FROM gone)::int, (SELECT max(id) FROM looked), (SELECT coalesce(bool_or(is_old), false) FROM looked)
