-- The newest attempts at some rows, row by row in their order. What has no end is under way while its row is held
-- under its token.
SELECT a.row_id, a.token, a.queue, a.attempt, a.worker,
       (extract(epoch FROM a.started_at) * 1000000::numeric)::bigint,
       (extract(epoch FROM a.ended_at) * 1000000::numeric)::bigint,
       a.result, a.lease_lost, a.error,
       a.ended_at IS NULL AND CASE a.kind
           WHEN 'message' THEN EXISTS (
               SELECT FROM {outbox} AS o
               WHERE o.id = a.row_id AND o.status = 'processing' AND o.lease_version::text = a.token)
           ELSE EXISTS (
               SELECT FROM {job} AS j
               WHERE j.id = a.row_id AND j.status = 'processing' AND j.fence::text = a.token)
       END
FROM (
    SELECT *
    FROM {attempt}
    WHERE kind = %(kind)s::text AND row_id = ANY (%(ids)s::bigint[])
    ORDER BY id DESC
    LIMIT %(limit)s::int
) AS a
ORDER BY a.row_id, a.id
