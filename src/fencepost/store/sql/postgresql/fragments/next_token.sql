least(o.lease_version + 1, 4611686018427387904)
