o.attempts < %(max_attempts)s::int AND o.lease_version < 4611686018427387904
