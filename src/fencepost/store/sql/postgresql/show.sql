SELECT {inspected_columns}
FROM {outbox} AS o
WHERE o.id = %(id)s::bigint
