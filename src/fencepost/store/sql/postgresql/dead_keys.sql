-- The ordering keys of messages, whose locks an operator's skip needs: also of those that are not dead yet, since
-- they may die between this statement and the skip.
SELECT DISTINCT queue, ordering_key
FROM {outbox}
WHERE id = ANY (%(ids)s::bigint[]) AND ordering_key IS NOT NULL
