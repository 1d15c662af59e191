"""Benchmarks that anybody can repeat: each starts a PostgreSQL server of its own and says what it measured."""
