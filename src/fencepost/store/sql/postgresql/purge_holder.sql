-- Whose turn it is to purge, of the sessions of this database.
SELECT l.pid, a.application_name,
       pg_catalog.floor(extract(epoch FROM statement_timestamp() - a.xact_start))::bigint AS seconds
FROM (SELECT {purge_lock} AS key) AS k
JOIN pg_catalog.pg_locks AS l
  ON l.classid = ((k.key >> 32) & 4294967295::bigint)::oid AND l.objid = (k.key & 4294967295::bigint)::oid
JOIN pg_catalog.pg_database AS d ON d.oid = l.database
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1::smallint AND l.granted
  AND d.datname = pg_catalog.current_database()
  AND l.pid <> pg_catalog.pg_backend_pid()
