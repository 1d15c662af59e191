-- A range of one key, and with it ORDER BY ordering_key, id: were it an equality, the order would be that of the
    -- primary key as well, and the planner would sometimes walk that, through the whole history.
    ordering_key >= k.ordering_key AND ordering_key <= k.ordering_key AND ordering_key IS NOT NULL AND done_at IS NULL
