"""``http://`` and ``https://``: webhooks."""
