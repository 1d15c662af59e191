lease_version = %(token)s::bigint AND status = 'processing'
      AND {same_message}
