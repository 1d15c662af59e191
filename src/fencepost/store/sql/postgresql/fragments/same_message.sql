-- A failover that loses commits hands ids and tokens out again: whoever holds a lost message must not touch the one
-- that has its id now. (Read once by the subquery: a generic plan would read all of the texts anew for each row.)
message_id = (SELECT %(message_ids)s::text[]::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
