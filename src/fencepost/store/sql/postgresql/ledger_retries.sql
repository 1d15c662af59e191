-- When operators put rows back.
SELECT outbox_id, (extract(epoch FROM at) * 1000000::numeric)::bigint
FROM {audit}
WHERE %(kind)s::text = 'message' AND outbox_id = ANY (%(ids)s::bigint[]) AND action = 'retry'
UNION ALL
SELECT row_id, (extract(epoch FROM at) * 1000000::numeric)::bigint
FROM {job_audit}
WHERE %(kind)s::text = 'job' AND row_id = ANY (%(ids)s::bigint[]) AND action = 'retry'
