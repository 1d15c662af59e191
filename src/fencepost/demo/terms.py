"""The terms under which the workers of the demonstration run, and who meets which fate."""

from __future__ import annotations

LEASE = 2.0
"""Seconds."""
PUBLISH_TIMEOUT = 1.5
POLL = 0.5

TAKEOVER_LIMIT = 1.0 + POLL
"""Seconds from the end of a lease to the next publish: guarantee I10 gives a second until the message can be
claimed, and one poll more until a worker that is free claims it."""

KILLED, FROZEN, SPARED = "worker-1", "worker-2", "worker-3"
WORKERS = (KILLED, FROZEN, SPARED)
