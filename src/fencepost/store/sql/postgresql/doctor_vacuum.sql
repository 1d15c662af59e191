-- Who keeps the oldest rows from being removed in this database, and since when. Of other users' sessions some
-- columns are null for who may not read all statistics. (A slot on which nothing is held back has no xmin.)
SELECT kind, name, xids, (extract(epoch FROM held) * 1000000::numeric)::bigint, application, state,
       (extract(epoch FROM queried) * 1000000::numeric)::bigint
FROM (
    SELECT 'session'::text AS kind, a.pid::text AS name, greatest(age(a.backend_xid), age(a.backend_xmin)) AS xids,
           statement_timestamp() - a.xact_start AS held, a.application_name AS application, a.state AS state,
           statement_timestamp() - a.query_start AS queried
    FROM pg_stat_activity AS a
    WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL) AND a.pid <> pg_backend_pid()
      AND (a.datname IS NULL OR a.datname = current_database())
    UNION ALL
    SELECT 'prepared transaction'::text, p.gid, age(p.transaction), statement_timestamp() - p.prepared,
           NULL::text, NULL::text, NULL::interval
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot'::text, s.slot_name::text, age(s.xmin), NULL::interval, NULL::text, NULL::text,
           NULL::interval
    FROM pg_replication_slots AS s
    WHERE s.xmin IS NOT NULL
) AS holder
ORDER BY xids DESC, held DESC NULLS LAST
LIMIT 1
