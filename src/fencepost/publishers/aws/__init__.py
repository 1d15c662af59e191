"""``sqs://`` and ``sns://``: what both share, and each of them."""
