"""fencepost: a transactional outbox for PostgreSQL."""
