-- From one consumer to the next by the keys, so that the cost is that of the consumers and of what is counted.
WITH RECURSIVE listed (consumer, place) AS (
    SELECT %(after)s::text COLLATE "C", 0
    UNION ALL
    SELECT least(
               (SELECT i.consumer FROM {inbox} AS i WHERE i.consumer > listed.consumer ORDER BY i.consumer LIMIT 1),
               (SELECT k.consumer FROM {inbox_key} AS k WHERE k.consumer > listed.consumer ORDER BY k.consumer LIMIT 1)
           ),
           listed.place + 1
    FROM listed
    WHERE listed.consumer IS NOT NULL AND listed.place < %(limit)s::int
)
SELECT listed.consumer,
       (SELECT count(*) FROM (
           SELECT FROM {inbox} AS i WHERE i.consumer = listed.consumer LIMIT %(cap)s::int
       ) AS counted),
       (SELECT (extract(epoch FROM statement_timestamp() - min(i.accepted_at)) * 1000000::numeric)::bigint
        FROM {inbox} AS i WHERE i.consumer = listed.consumer),
       (SELECT (extract(epoch FROM statement_timestamp() - max(i.accepted_at)) * 1000000::numeric)::bigint
        FROM {inbox} AS i WHERE i.consumer = listed.consumer),
       (SELECT count(*) FROM (
           SELECT FROM {inbox_key} AS k WHERE k.consumer = listed.consumer LIMIT %(cap)s::int
       ) AS counted)
FROM listed
WHERE listed.place > 0 AND listed.consumer IS NOT NULL
ORDER BY listed.place
