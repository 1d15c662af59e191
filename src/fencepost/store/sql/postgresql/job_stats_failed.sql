SELECT outcome, count(*)
FROM {job}
WHERE status = 'failed'
GROUP BY outcome
ORDER BY outcome
