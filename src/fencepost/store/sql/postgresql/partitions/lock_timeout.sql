SELECT set_config('lock_timeout'::text, %(milliseconds)s::text, true)
