-- NOTIFY holds a lock of the whole server from before its COMMIT until that is flushed: if every producer sent
    -- one, none of them could share a flush with another. So one sends one at a time: the first in a slot of
    -- 250 ms, until its transaction ends; and only once in its transaction. Dispatchers look again by themselves
    -- for a while after each message. A slow transaction keeps the others quiet for no longer than its slot, which
    -- never comes again. (In slots shorter than a flush, all producers end up in the queue for that lock: with
    -- flushes of 30 ms, 64 of them fell to a fifth in slots of 10 ms, and to a fiftieth where each sent one.)
    -- A full notification queue would make the producer's COMMIT fail.
    CASE WHEN pg_notification_queue_usage() >= 0.5::float8 THEN NULL
         WHEN pg_catalog.strpos(coalesce(current_setting('fencepost.notified'::text, true), ''::text),
                                %(channel)s::text || ';'::text) > 0 THEN NULL
         WHEN pg_catalog.pg_try_advisory_xact_lock(
                  pg_catalog.hashtext(%(channel)s::text),
                  pg_catalog.mod(
                      pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 4::numeric)::bigint,
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
