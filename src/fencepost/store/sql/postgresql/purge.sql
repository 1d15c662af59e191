-- One bounded step: look at the next rows in id order, delete the old done ones among them, and say where
-- the step ended and whether anything in it was old enough to go on for. Two at once would only read the same
-- rows twice: whoever comes second learns that it is not its turn, without waiting and without reading any.
WITH turn AS MATERIALIZED (
    SELECT pg_catalog.pg_try_advisory_xact_lock({purge_lock}) AS is_ours
),
step AS MATERIALIZED (
    SELECT id, status, done_at, created_at
    FROM {outbox}
    WHERE (SELECT is_ours FROM turn) AND id > %(after)s::bigint
    ORDER BY id
    LIMIT %(window)s::int
),
old AS MATERIALIZED (
    SELECT id
    FROM {outbox}
    WHERE id = ANY (ARRAY(
            SELECT id FROM step
            WHERE status = 'done' AND done_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
            ORDER BY id
            LIMIT %(limit)s::int
        ))
      AND status = 'done'
      AND done_at < statement_timestamp() - %(older_than)s::float8 * interval '1 second'
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {outbox} WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT (SELECT count(*) FROM gone),
       (SELECT max(id) FROM step),
       -- Nothing is done before it was created: a step of young rows only ends the search.
       (SELECT coalesce(min(created_at) < statement_timestamp() - %(older_than)s::float8 * interval '1 second', false)
        FROM step),
       (SELECT is_ours FROM turn)
