-- Waits for another transaction that is at the same resource. The same token writes the row again: under a snapshot
-- that is older than another holder's write this fails (40001), and so nobody goes on from what is no longer there.
INSERT INTO {fence} AS f (receiver, resource, token)
VALUES (%(receiver)s::text, %(resource)s::text, %(token)s::bigint)
ON CONFLICT (receiver, resource) DO UPDATE
SET token = excluded.token, admitted_at = statement_timestamp()
WHERE f.token <= excluded.token
RETURNING true
