lease_version = (%(tokens)s::bigint[])[pg_catalog.array_position(%(ids)s::bigint[], id)] AND status = 'processing'
      AND {same_message}
