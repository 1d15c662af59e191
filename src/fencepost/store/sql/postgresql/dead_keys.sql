-- The ordering keys of dead messages, whose locks an operator's skip needs.
SELECT DISTINCT queue, ordering_key
FROM {outbox}
WHERE id = ANY (%(ids)s::bigint[]) AND status = 'dead' AND ordering_key IS NOT NULL
