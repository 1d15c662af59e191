SELECT s.seqcache, s.seqincrement, s.seqcycle
FROM pg_depend d
JOIN pg_sequence s ON s.seqrelid = d.objid
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'i'
  AND d.refobjid = to_regclass(%(outbox)s::text) AND a.attname = 'id'
