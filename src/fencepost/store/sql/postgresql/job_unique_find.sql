SELECT id, job_id::text, args::text = %(args)s::text
FROM {job}
WHERE task = %(task)s::text AND unique_key = %(unique_key)s::text AND status IN ('queued', 'processing')
