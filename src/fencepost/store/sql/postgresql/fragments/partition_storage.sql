WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05)
