-- A finalize whose answer was lost is repeated: rows that already stand in its very target state under its token are
-- its own work.
SELECT id
FROM {job}
WHERE id = ANY (%(ids)s::bigint[])
  AND attempt_token = (SELECT %(tokens)s::text[]::uuid[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
  AND status = %(status)s::text
  AND outcome IS NOT DISTINCT FROM (%(outcomes)s::text[])[pg_catalog.array_position(%(ids)s::bigint[], id)]
