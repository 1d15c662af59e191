-- Whether the outbox is partitioned, and the last id that was drawn; null before the first one.
SELECT c.relkind = 'p',
       pg_catalog.pg_sequence_last_value(
           pg_catalog.pg_get_serial_sequence(%(outbox)s::text, 'id'::text)::regclass
       )
FROM pg_catalog.pg_class AS c
WHERE c.oid = to_regclass(%(outbox)s::text)::oid
