-- First statement of every transaction of a dispatcher, local to it: poolers refuse start-up options and
-- would leak session ones. A worker frozen in mid-transaction must lose its row locks before its lease ends.
-- Every statement of a dispatcher goes through an index; with the other scans ruled out it does so in small
-- tables too, and with stale statistics, and finalizes lock rows in id order: they cannot deadlock.
SELECT set_config('statement_timeout', %(statement_ms)s::text, true),
       set_config('lock_timeout', %(lock_ms)s::text, true),
       set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('tcp_user_timeout', %(idle_ms)s::text, true),
       CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN set_config('transaction_timeout', %(transaction_ms)s::text, true) END
