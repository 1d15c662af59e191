-- NOTIFY holds a lock of the whole server from before its COMMIT until that is flushed: if every producer sent
    -- one, none of them could share a flush with another. So only the first in each 10 ms sends one, and only
    -- once in its transaction; dispatchers look again by themselves for a while after each message. A slow
    -- transaction keeps nobody else quiet: its slot never comes again.
    -- A full notification queue would make the producer's COMMIT fail.
    CASE WHEN pg_notification_queue_usage() >= 0.5::float8 THEN NULL
         WHEN pg_catalog.strpos(coalesce(current_setting('fencepost.notified'::text, true), ''::text),
                                %(channel)s::text || ';'::text) > 0 THEN NULL
         WHEN pg_catalog.pg_try_advisory_xact_lock(
                  pg_catalog.hashtext(%(channel)s::text),
                  pg_catalog.mod(
                      pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 100::numeric)::bigint,
                      2147483648::bigint
                  )::int
              )
         THEN pg_notify(%(channel)s::text, ''::text)::text || set_config(
                  'fencepost.notified'::text,
                  coalesce(current_setting('fencepost.notified'::text, true), ''::text)
                      || %(channel)s::text || ';'::text,
                  true
              )
    END
