SELECT c.conname::text, c.convalidated
FROM pg_constraint c
WHERE c.conrelid = to_regclass(%(outbox)s::text)::oid AND c.contype = 'c'
