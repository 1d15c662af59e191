-- To count what runs and to claim are two statements, and nobody may claim in between. It ends with the transaction,
-- which is over before a lease is.
SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(%(table)s::text || ' lanes'::text, 0::bigint))
