-- Not EXISTS, which may be planned as one pass over everything that is open. (A range: see of_key.sql.)
(SELECT true FROM {outbox} AS f
 WHERE f.queue = head.queue AND f.ordering_key >= head.ordering_key AND f.ordering_key <= head.ordering_key
   AND f.ordering_key IS NOT NULL
   AND f.done_at IS NULL AND f.id > head.id
 ORDER BY f.ordering_key, f.id LIMIT 1)
