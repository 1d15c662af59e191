SELECT to_regnamespace(%(schema)s::text) IS NOT NULL,
       to_regclass(%(outbox)s::text) IS NOT NULL,
       to_regclass(%(migration)s::text) IS NOT NULL,
       current_setting('server_encoding')
