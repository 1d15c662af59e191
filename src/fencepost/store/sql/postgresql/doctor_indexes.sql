SELECT c.relname::text, i.indisvalid, pg_get_indexdef(i.indexrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass(%(outbox)s::text)::oid
ORDER BY c.relname
