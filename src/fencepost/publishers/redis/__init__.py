"""``redis://`` and ``rediss://``: streams."""
