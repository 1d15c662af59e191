SELECT pg_advisory_xact_lock(hashtextextended(%(name)s::text, 7021963::bigint))
