"""Publishers against the real thing: a pipe, an HTTP receiver, a NATS server."""
