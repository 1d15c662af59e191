-- A dispatcher's own settings: for its session, or, behind a pooler that would leak them, for one transaction.
-- A worker frozen in mid-transaction must lose its row locks before its lease ends.
-- Every statement of a dispatcher goes through an index; with the other scans ruled out it does so in small
-- tables too, and with stale statistics, and finalizes lock rows in id order: they cannot deadlock.
SELECT set_config('statement_timeout', %(statement_ms)s::text, %(local)s::boolean),
       set_config('lock_timeout', %(lock_ms)s::text, %(local)s::boolean),
       set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, %(local)s::boolean),
       set_config('enable_seqscan', 'off', %(local)s::boolean),
       set_config('enable_bitmapscan', 'off', %(local)s::boolean),
       set_config('tcp_user_timeout', %(idle_ms)s::text, %(local)s::boolean),
       CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN set_config('transaction_timeout', %(transaction_ms)s::text, %(local)s::boolean) END
