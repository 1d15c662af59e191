SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 7021963))
