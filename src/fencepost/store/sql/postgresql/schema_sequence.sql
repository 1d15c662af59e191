SELECT s.seqcache, s.seqincrement, s.seqcycle
FROM pg_depend d
JOIN pg_sequence s ON s.seqrelid = d.objid
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_catalog.pg_class'::regclass::oid AND d.refclassid = 'pg_catalog.pg_class'::regclass::oid AND d.deptype IN ('i', 'a')
  AND d.refobjid = to_regclass(%(outbox)s::text)::oid AND a.attname = 'id'
