-- As job_columns.sql has them, but without the arguments, which may be a MiB.
j.id, j.job_id::text, j.queue, j.task, 'null'::text, j.headers::text,
    (extract(epoch FROM j.created_at) * 1000000::numeric)::bigint,
    (extract(epoch FROM j.available_at) * 1000000::numeric)::bigint,
    j.unique_key, j.lane
