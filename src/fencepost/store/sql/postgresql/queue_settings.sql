SELECT queue, paused, weight, concurrency, lease_seconds, publish_timeout_seconds, max_attempts,
       backoff_base_seconds, backoff_cap_seconds, sequenced
FROM {queue}
ORDER BY queue
