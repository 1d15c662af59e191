-- A finalize whose answer was lost is repeated: rows that already stand in its very target state under its
-- token are its own work.
SELECT id
FROM {outbox}
WHERE id = ANY (%(ids)s::bigint[]) AND lease_version = %(token)s::bigint
  AND {same_message}
  AND status = %(status)s::text AND outcome IS NOT DISTINCT FROM %(outcome)s::text
