lease_version = (%(tokens)s::bigint[])[pg_catalog.array_position(%(ids)s::bigint[], id)] AND status = 'processing'
      AND message_id = (SELECT %(message_ids)s::text::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
