SELECT to_regnamespace(%(schema)s::text) IS NOT NULL,
       to_regclass(%(outbox)s::text) IS NOT NULL,
       to_regclass(%(audit)s::text) IS NOT NULL,
       to_regclass(%(queue)s::text) IS NOT NULL,
       to_regclass(%(key)s::text) IS NOT NULL,
       to_regclass(%(inbox)s::text) IS NOT NULL,
       to_regclass(%(inbox_key)s::text) IS NOT NULL,
       to_regclass(%(migration)s::text) IS NOT NULL,
       -- Ours, or somebody else's table of that name?
       (SELECT count(*) = 3 FROM pg_attribute
        WHERE attrelid = to_regclass(%(migration)s::text)::oid AND NOT attisdropped
          AND attname IN ('version', 'name', 'checksum')),
       current_setting('server_encoding'::text)
