-- The next ordering keys whose first open row is parked: nothing is before it that could promote it one day.
WITH RECURSIVE
{keys_walk}
SELECT queue, ordering_key, status = 'blocked', seen = %(window)s::int
FROM walk
WHERE status = 'blocked' OR seen = %(window)s::int
ORDER BY seen
