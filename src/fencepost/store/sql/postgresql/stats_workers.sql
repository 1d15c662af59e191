SELECT lease_owner, count(*) FROM {outbox}
WHERE done_at IS NULL AND status = 'processing' AND lease_until >= statement_timestamp()
GROUP BY lease_owner ORDER BY lease_owner
