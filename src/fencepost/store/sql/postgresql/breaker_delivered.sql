-- Something was delivered: what failures were counted before does not count any more.
UPDATE {queue} SET breaker_seen = 0 WHERE queue = %(queue)s::text AND breaker_seen > 0
