-- Claim messages whose worker may have crashed on them: those whose lease has expired, and those that were
-- taken over before and came back. Least often reclaimed first, so that a poison message comes last.
WITH
{queue_front},
suspect AS MATERIALIZED (
    SELECT id
    FROM front
    WHERE NOT {is_paused}
      AND ((status = 'pending' AND reclaim_count > 0 AND reclaim_count <= %(max_reclaims)s::int)
           OR (status = 'processing' AND lease_until < statement_timestamp() AND recovery_policy <> 'manual'
               AND attempts < %(max_attempts)s::int - %(spare_attempts)s::int
               AND reclaim_count <= %(max_reclaims)s::int))
      -- In its turn: the first open row of its key. (What is not the first at this statement's start cannot have
      -- been passed by another one since.)
      AND (ordering_key IS NULL OR id = (
               SELECT h.id FROM {outbox} AS h
               WHERE h.queue = %(queue)s::text
                 -- See of_key.sql.
                 AND h.ordering_key >= front.ordering_key AND h.ordering_key <= front.ordering_key
                 AND h.ordering_key IS NOT NULL AND h.done_at IS NULL
               ORDER BY h.ordering_key, h.id LIMIT 1
           ))
    ORDER BY reclaim_count, available_at, id
    LIMIT %(batch)s::int + 64
),
taken AS MATERIALIZED (
    SELECT id
    FROM {outbox}
    WHERE id = ANY (ARRAY(SELECT id FROM suspect))
      AND available_at <= statement_timestamp()
      AND ((status = 'pending' AND reclaim_count > 0)
           OR (status = 'processing' AND lease_until < statement_timestamp() AND recovery_policy <> 'manual'
               AND attempts < %(max_attempts)s::int))
    ORDER BY reclaim_count, available_at, id
    LIMIT %(batch)s::int
    FOR UPDATE SKIP LOCKED
)
UPDATE {outbox} AS o
{claim_set}
WHERE o.id = ANY (ARRAY(SELECT id FROM taken))
{claim_returning}
