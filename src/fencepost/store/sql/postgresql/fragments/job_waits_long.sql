(f.available_at < statement_timestamp() - %(waiting)s::float8 * interval '1 second'
            -- Workers that do not know a task put its jobs off by a few seconds again and again.
            OR (f.created_at < statement_timestamp() - %(waiting)s::float8 * interval '1 second'
                AND pg_catalog.strpos(f.last_error, %(no_task)s::text) > 0))
