SELECT outcome, count(*) FROM {outbox}
WHERE done_at IS NULL AND available_at = {far} AND status = 'dead'
GROUP BY outcome ORDER BY outcome
