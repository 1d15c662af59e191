status = 'processing'
      -- (Read once by the subquery: a generic plan would read all of the texts anew for each row.)
      AND attempt_token = (SELECT %(tokens)s::text[]::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
