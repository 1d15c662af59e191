-- Claim due messages of one queue that no crash has touched. The scan follows the ready index from its
-- front: it passes over leased rows (as many as are in flight) and stops at the limit, so its cost depends
-- neither on the backlog nor on the history. The materialized CTE makes the number exact under any plan; the
-- array keeps a generic plan from joining by a scan of the whole table, as it would for LIMIT $n.
WITH due AS MATERIALIZED (
    SELECT id
    FROM {outbox}
    WHERE queue = %(queue)s::text
      AND done_at IS NULL
      AND available_at <= statement_timestamp()
      AND lease_until IS NULL
      AND status = 'pending'
      AND reclaim_count = 0
    ORDER BY available_at, id
    LIMIT %(batch)s::int
    FOR UPDATE SKIP LOCKED
)
UPDATE {outbox} AS o
{claim_set}
WHERE o.id = ANY (ARRAY(SELECT id FROM due))
{claim_returning}
