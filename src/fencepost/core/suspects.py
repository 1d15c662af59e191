"""When messages and jobs that a worker may have crashed on stop being taken one by one.

One of them may kill whoever takes it. But a machine that lost power must not make its whole load crawl.
"""

from __future__ import annotations

SUSPECTS_BEFORE_BATCH = 3
"""When so many suspects of a crash went well, the others that crashed once with them come as a batch."""

SPARE_ATTEMPTS = 2
"""Attempts that whatever comes in such a batch has left if that crashes as well: after one failure of its own it
must not be dead for what another one did."""
