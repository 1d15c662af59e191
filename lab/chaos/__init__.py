"""Chaos: real servers and real processes under a seeded schedule of faults; all that happens becomes a history."""
