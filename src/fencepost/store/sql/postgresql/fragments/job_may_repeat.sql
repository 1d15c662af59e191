j.recovery_policy <> 'manual' AND j.attempts < j.max_attempts
