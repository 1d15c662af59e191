-- How many of the first keys have a dead head with others behind it, and how many a stranded one.
WITH RECURSIVE
{keys_walk}
SELECT count(*) FILTER (WHERE status = 'dead' AND {keys_follower} IS NOT NULL),
       count(*) FILTER (WHERE status = 'blocked'),
       count(*)
FROM walk AS head
