-- One that was added NOT VALID holds for all that is written since; one that is NOT ENFORCED (from PostgreSQL 18 on)
-- holds for nothing.
SELECT c.conname::text, coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
FROM pg_constraint c
WHERE c.conrelid = to_regclass(%(outbox)s::text)::oid AND c.contype = 'c'
