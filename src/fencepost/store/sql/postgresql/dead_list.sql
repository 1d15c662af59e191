SELECT {inspected_columns}
FROM {outbox} AS o
WHERE o.done_at IS NULL AND o.available_at = {far} AND o.status = 'dead'
  AND (%(queue)s::text IS NULL OR o.queue = %(queue)s::text)
  AND (%(outcome)s::text IS NULL OR o.outcome = %(outcome)s::text)
  AND o.id > %(after)s::bigint
ORDER BY o.id
LIMIT %(limit)s::int
