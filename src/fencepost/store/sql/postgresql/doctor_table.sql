SELECT s.n_live_tup, s.n_dead_tup, c.reloptions::text,
       (extract(epoch FROM statement_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))
        * 1000000::numeric)::bigint
FROM pg_class AS c JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.oid = to_regclass(%(outbox)s::text)::oid
