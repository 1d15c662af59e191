SELECT 1 FROM {outbox} WHERE queue = %(queue)s::text AND done_at IS NULL ORDER BY available_at LIMIT 1
