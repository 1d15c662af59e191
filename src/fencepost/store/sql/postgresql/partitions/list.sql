SELECT c.relname::text, pg_catalog.pg_get_expr(c.relpartbound, c.oid),
       greatest(c.reltuples, 0::real)::bigint, pg_catalog.pg_total_relation_size(c.oid::regclass)
FROM pg_catalog.pg_inherits AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(outbox)s::text)::oid
