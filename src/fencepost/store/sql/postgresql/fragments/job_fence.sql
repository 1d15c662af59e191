status = 'processing'
      AND attempt_token = (%(tokens)s::text[]::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
