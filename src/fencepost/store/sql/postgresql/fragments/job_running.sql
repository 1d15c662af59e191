-- What runs in lanes: every leased job counts, until it is finished or reclaimed, so that no slot can leak.
running AS MATERIALIZED (
    SELECT task, lane, count(*)::int AS n
    FROM {job}
    WHERE status = 'processing' AND lane IS NOT NULL
    GROUP BY task, lane
)
