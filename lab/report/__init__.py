"""Runs parts of the lab, keeps what they came to, and writes the figures of ``docs/reliability.md`` from it."""
