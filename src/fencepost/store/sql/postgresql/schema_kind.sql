SELECT c.relkind = 'p' FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(%(outbox)s::text)::oid
