target AS MATERIALIZED (
    SELECT id, message_id,
           pg_catalog.json_build_object('status', status, 'outcome', outcome, 'attempts', attempts,
                             'reclaim_count', reclaim_count, 'lease_version', lease_version,
                             'dead_at', dead_at, 'last_error', last_error) AS before
    FROM {outbox}
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'dead'
    ORDER BY id
    FOR UPDATE
)
