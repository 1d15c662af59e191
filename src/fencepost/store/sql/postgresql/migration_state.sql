SELECT to_regnamespace(%(schema)s::text) IS NOT NULL,
       -- A digit for each table, since drivers differ in how they read an array.
       (SELECT string_agg(CASE WHEN to_regclass(name) IS NULL THEN '0'::text ELSE '1'::text END, ''::text ORDER BY place)
        FROM unnest(%(tables)s::text[]) WITH ORDINALITY AS t (name, place)),
       to_regclass(%(migration)s::text) IS NOT NULL,
       -- Ours, or somebody else's table of that name?
       (SELECT count(*) = 3 FROM pg_attribute
        WHERE attrelid = to_regclass(%(migration)s::text)::oid AND NOT attisdropped
          AND attname IN ('version', 'name', 'checksum')),
       current_setting('server_encoding'::text)
