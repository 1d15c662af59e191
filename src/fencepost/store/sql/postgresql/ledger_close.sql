-- An end that stands is not written again, and nobody ends what another worker began.
UPDATE {attempt} AS a
SET ended_at = statement_timestamp(), result = e.result, error = e.error, lease_lost = e.lease_lost
FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(workers)s::text[], %(results)s::text[], %(errors)s::text[],
            %(lost)s::boolean[]) AS e (row_id, token, worker, result, error, lease_lost)
WHERE a.kind = %(kind)s::text AND a.row_id = e.row_id AND a.token = e.token AND a.worker = e.worker
  AND a.ended_at IS NULL
