SELECT CASE WHEN pg_notification_queue_usage() < 0.5 THEN pg_notify(%(channel)s::text, '')::text END
