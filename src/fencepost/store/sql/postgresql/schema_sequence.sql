SELECT s.seqcache, s.seqincrement, s.seqcycle
FROM pg_sequence s
WHERE s.seqrelid = pg_get_serial_sequence(%(outbox)s::text, 'id')::regclass
