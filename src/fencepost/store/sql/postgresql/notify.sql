SELECT CASE WHEN pg_notification_queue_usage() < 0.5::float8 THEN pg_notify(%(channel)s::text, ''::text)::text END
