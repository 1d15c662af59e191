-- Claim due messages of one queue that no crash has touched, and park what waits behind somebody else's message.
-- The scan follows the ready index from a floor: it passes over leased rows (as many as are in flight) and stops
-- at the limit, so its cost depends neither on the backlog nor on the history. The materialized CTEs make the
-- number exact under any plan; the arrays keep a generic plan from joining by a scan of the whole table.
WITH due AS MATERIALIZED (
    SELECT id, ordering_key, NOT ({claimable}) AS is_over
    FROM {outbox} AS o
    WHERE queue = %(queue)s::text
      AND done_at IS NULL
      AND available_at >= CASE WHEN %(floor)s::bigint > 0::bigint
                               THEN timestamptz 'epoch' + %(floor)s::bigint::float8 * interval '1 microsecond'
                               ELSE timestamptz '-infinity' END
      AND available_at <= statement_timestamp()
      AND lease_until IS NULL
      AND status = 'pending'
      AND reclaim_count = 0
      AND NOT {is_paused}
    ORDER BY available_at, id
    LIMIT %(batch)s::int
    FOR UPDATE SKIP LOCKED
),
-- What is due tells which keys to serve. Each is served from its first open row on, up to the number of its due
-- rows, and where room is left, beyond them: into what is parked.
k AS MATERIALIZED (
    SELECT ordering_key, count(*)::int AS due, max(id) AS last,
           (greatest(%(batch)s::int - (SELECT count(*) FROM due), %(batch)s::int / 4) / count(*) OVER ())::int AS spare
    FROM due
    WHERE ordering_key IS NOT NULL
    GROUP BY ordering_key
),
first_rows AS MATERIALIZED (
    SELECT k.ordering_key, o.id, o.place
    FROM k
    CROSS JOIN LATERAL (
        SELECT id, row_number() OVER (ORDER BY ordering_key, id) AS place
        FROM {outbox}
        WHERE queue = %(queue)s::text AND {of_key}
        ORDER BY ordering_key, id
        LIMIT least(k.due + k.spare, %(longest_run)s::int)
    ) AS o
),
-- (Found by id: a condition on done_at would let the planner choose a partial index and read all of it.)
more AS MATERIALIZED (
    SELECT id, NOT ({claimable}) AS is_over
    FROM {outbox} AS o
    WHERE id = ANY (ARRAY(SELECT id FROM first_rows WHERE id NOT IN (SELECT id FROM due)))
      AND lease_until IS NULL AND reclaim_count = 0
      AND (status = 'blocked' OR (status = 'pending' AND available_at <= statement_timestamp()))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
free AS MATERIALIZED (
    SELECT id, is_over FROM due WHERE ordering_key IS NOT NULL
    UNION ALL
    SELECT id, is_over FROM more
),
-- A run has no gap: where the nth free row of a key is its nth open row, so are all before it. It ends at the
-- first row that is not free, and at one that becomes dead now.
run AS MATERIALIZED (
    SELECT id, place
    FROM (
        SELECT f.id, f.place,
               row_number() OVER of_key AS nth,
               count(*) FILTER (WHERE free.is_over) OVER of_key - free.is_over::int AS over_before
        FROM first_rows AS f JOIN free USING (id)
        WINDOW of_key AS (PARTITION BY f.ordering_key ORDER BY f.id)
    ) AS numbered
    WHERE nth = place AND over_before = 0 AND place <= %(longest_run)s::int
    ORDER BY place, id
    -- Unordered messages give up a quarter of their share at most, to what is parked; otherwise a long key would
    -- keep them waiting.
    LIMIT %(batch)s::int - (SELECT count(*) - count(*) / 4 FROM due WHERE ordering_key IS NULL)
),
-- The heads that are not free: leased, dead, not due, or crash suspects. Only who holds the lock of a head that is
-- still open may park what waits behind it: whoever closes that head looks for parked rows afterwards.
obstacle AS MATERIALIZED (
    SELECT id, ordering_key
    FROM {outbox}
    WHERE id = ANY (ARRAY(SELECT id FROM first_rows WHERE place = 1 AND id NOT IN (SELECT id FROM free)))
      AND status <> 'done'
      AND (lease_until IS NULL OR lease_until < statement_timestamp() OR %(park_behind_leased)s::boolean)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
-- What else waits behind it and is due, up to a limit, so that a long key is out of the way in a few claims. (All of
-- it is behind the obstacle. To say so keeps a plan from reading, and locking, what is behind every key first.)
behind AS MATERIALIZED (
    SELECT b.id
    FROM obstacle JOIN k USING (ordering_key)
    CROSS JOIN LATERAL (
        SELECT id
        FROM {outbox}
        WHERE queue = %(queue)s::text AND {of_key}
          AND (ordering_key, id) > (k.ordering_key, k.last) AND id > obstacle.id
          AND available_at <= statement_timestamp() AND lease_until IS NULL AND status = 'pending'
          AND reclaim_count = 0
        ORDER BY ordering_key, id
        LIMIT %(park)s::int
        FOR UPDATE SKIP LOCKED
    ) AS b
    LIMIT %(park)s::int
),
parked AS (
    UPDATE {outbox}
    SET status = 'blocked', available_at = {far}
    WHERE id = ANY (ARRAY(
        SELECT due.id FROM due JOIN obstacle USING (ordering_key) WHERE due.id <> obstacle.id
        UNION ALL
        SELECT id FROM behind
    ))
    RETURNING id
),
taken AS (
    UPDATE {outbox} AS o
    {claim_set}
    WHERE o.id = ANY (ARRAY(
        SELECT id FROM run
        UNION ALL
        (SELECT id FROM due WHERE ordering_key IS NULL LIMIT %(batch)s::int - (SELECT count(*) FROM run))
    ))
    {claim_returning}
)
SELECT taken.*, looked.parked, looked.waiting
FROM (
    SELECT (SELECT count(*) FROM parked)::int AS parked,
           -- Due, but their key's head is in other hands just now.
           (SELECT coalesce(sum(due), 0) FROM k
            WHERE ordering_key NOT IN (SELECT ordering_key FROM obstacle)
              AND ordering_key NOT IN (SELECT f.ordering_key FROM run JOIN first_rows AS f USING (id)))::int AS waiting
) AS looked
LEFT JOIN taken ON true
