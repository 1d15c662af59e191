"""``nats://``: JetStream."""
