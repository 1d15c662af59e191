-- Why an operator's action left these alone: what they are, and the open job that has their unique key.
SELECT j.id, j.status, j.outcome, j.unique_key, (
    SELECT o.id
    FROM {job} AS o
    WHERE o.task = j.task AND o.unique_key = j.unique_key AND o.unique_key IS NOT NULL
      AND o.status IN ('queued', 'processing') AND o.id <> j.id
)
FROM {job} AS j
WHERE j.id = ANY (%(ids)s::bigint[])
