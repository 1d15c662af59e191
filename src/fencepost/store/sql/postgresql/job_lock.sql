-- Lock what is about to be written by several statements of one transaction, in the order of the ids, as operators do:
-- each of those statements is over rows of its own, so that two transactions would wait for each other.
SELECT id
FROM {job}
WHERE id = ANY (%(ids)s::bigint[]) AND {job_fence}
ORDER BY id
FOR UPDATE
