j.attempts < j.max_attempts AND j.fence < 4611686018427387904
