"""Rows that nobody claimed: what the tests of the runtime's parts hold where no database is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fencepost import DispatcherSettings
from fencepost.core.lease import TrustWindow
from fencepost.core.queue import QueueSettings
from fencepost.core.records import Claimed
from fencepost.core.states import Recovery
from fencepost.runtime.held import Holding
from fencepost.runtime.terms import terms_of
from fencepost.testing import sample_message

LEASE = timedelta(seconds=60)
SETTINGS = DispatcherSettings(owner="w", lease=LEASE)
BEAT = terms_of(SETTINGS, QueueSettings(queue="default")).beat_every
"""Seconds between the heartbeats of a holding."""


def holding(
    row_id: int = 1,
    token: int = 1,
    *,
    key: str | None = None,
    event_type: str = "e",
    sent_at: float = 0.0,
    recovery: Recovery = Recovery.AUTO,
    attempt: int = 1,
    settings: DispatcherSettings = SETTINGS,
    **own: Any,
) -> Holding:
    """Make a row under a lease.

    Args:
        sent_at: when its claim was sent, by the monotonic clock.
        own: settings of its queue.
    """
    message = sample_message(event_type, id=row_id, ordering_key=key)
    claimed = Claimed(message, token, attempt, 12, recovery, LEASE, 0)
    window = TrustWindow(sent_at, LEASE.total_seconds())
    return Holding(window, sent_at, claimed, terms_of(settings, QueueSettings(queue="default", **own)))
