-- Of the table and, where it has some, of its partitions.
WITH RECURSIVE part AS (
    SELECT to_regclass(%(outbox)s::text)::oid AS oid
    UNION ALL
    SELECT i.inhrelid FROM part JOIN pg_inherits AS i ON i.inhparent = part.oid
)
SELECT coalesce(sum(s.n_live_tup), 0::numeric)::bigint, coalesce(sum(s.n_dead_tup), 0::numeric)::bigint,
       string_agg(c.reloptions::text, ' '::text),
       (extract(epoch FROM statement_timestamp() - max(greatest(s.last_vacuum, s.last_autovacuum)))
        * 1000000::numeric)::bigint
FROM part JOIN pg_class AS c ON c.oid = part.oid JOIN pg_stat_all_tables AS s ON s.relid = c.oid
