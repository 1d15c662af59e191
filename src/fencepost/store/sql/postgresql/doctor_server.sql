SELECT current_setting('track_commit_timestamp'::text)::boolean, current_setting('autovacuum'::text)::boolean
