SELECT {inspected_columns}
FROM {outbox} AS o
WHERE o.message_id = %(message_id)s::text::uuid
ORDER BY o.id LIMIT %(limit)s::int
