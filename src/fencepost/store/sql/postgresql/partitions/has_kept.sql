-- Whether anything in a partition must stay: by the ready index where it is open, else by a scan that ends at the
-- first one.
SELECT EXISTS (SELECT 1 FROM ONLY {partition} WHERE done_at IS NULL)
       OR EXISTS (
           SELECT 1 FROM ONLY {partition}
           WHERE done_at >= statement_timestamp() - %(older_than)s::float8 * interval '1 second'
       )
