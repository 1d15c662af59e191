SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(outbox)s::text)::oid AND a.attnum > 0 AND NOT a.attisdropped
