SELECT count(*) FROM (SELECT 1 FROM {outbox} WHERE done_at IS NOT NULL LIMIT %(cap)s::int + 1) AS kept
