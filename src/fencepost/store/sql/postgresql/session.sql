-- A dispatcher's own settings: for its session, or, behind a pooler that would leak them, for one transaction.
-- A worker frozen in mid-transaction must lose its row locks before its lease ends.
-- Every statement of a dispatcher goes through an index; with the other scans ruled out it does so in small
-- tables too, and with stale statistics, and finalizes lock rows in id order: they cannot deadlock.
-- Planning some of them takes longer than running them, and their plans do not depend on the values.
-- A scan that is ruled out and taken all the same, as there is no other, costs so much on paper (before PostgreSQL 18)
-- that the server would compile the statement first, which takes longer than any of ours.
-- Our SQL names the schema of every table; nothing else in the database can stand in for a function or an
-- operator of PostgreSQL's own. (Producers have their own search_path: there only exact types keep others out.)
SELECT set_config('search_path'::text, 'pg_catalog, pg_temp'::text, %(local)s::boolean),
       set_config('statement_timeout'::text, %(statement_ms)s::text, %(local)s::boolean),
       set_config('lock_timeout'::text, %(lock_ms)s::text, %(local)s::boolean),
       set_config('default_transaction_isolation'::text, 'read committed'::text, %(local)s::boolean),
       set_config('idle_in_transaction_session_timeout'::text, %(idle_ms)s::text, %(local)s::boolean),
       set_config('enable_seqscan'::text, 'off'::text, %(local)s::boolean),
       set_config('enable_bitmapscan'::text, 'off'::text, %(local)s::boolean),
       set_config('jit'::text, 'off'::text, %(local)s::boolean),
       set_config('plan_cache_mode'::text, 'force_generic_plan'::text, %(local)s::boolean),
       set_config('tcp_user_timeout'::text, %(idle_ms)s::text, %(local)s::boolean),
       CASE WHEN current_setting('server_version_num'::text)::int >= 170000
            THEN set_config('transaction_timeout'::text, %(transaction_ms)s::text, %(local)s::boolean) END
