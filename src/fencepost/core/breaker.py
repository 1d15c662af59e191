"""When failures say that a destination is down: the one place where that is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from fencepost.core.backoff import Backoff

SHARED_QUEUE_FACTOR = 4
"""In a queue that is no destination's own, so many times the messages must fail: some kinds of them may have
trouble of their own, and the others must not be stopped for it."""

FIRST_PAUSE = timedelta(seconds=1)
"""Until the first probe; each one that fails doubles it."""


@dataclass(slots=True)
class FailureCount:
    """The failures of one queue since something of it was delivered.

    One message that can never be delivered must not stop its queue, however often it is tried: so a failure counts
    once a message, unless the publisher says that the destination as a whole cannot be reached.

    Args:
        threshold: failures to reach the destination that open the breaker; 0 for never.
        many: messages that fail in any other way, which open it as well.
    """

    threshold: int
    many: int
    unavailable: int = 0
    messages: set[int] = field(default_factory=set)

    def failed(self, message_id: int, *, unavailable: bool) -> bool:
        """Count a failure; return whether the breaker opens."""
        if not self.threshold:
            return False
        if unavailable:
            self.unavailable += 1
        elif len(self.messages) < self.many:
            self.messages.add(message_id)
        return self.unavailable >= self.threshold or len(self.messages) >= self.many


@dataclass(slots=True)
class SlowStart:
    """How much of a queue is published at once after its breaker was closed.

    What waited through an outage would bring a destination that just came back down again. So it begins with one;
    each that is delivered makes it one more, and each that fails halves it (as TCP's slow start does, RFC 5681).
    """

    most: int = 1

    def delivered(self) -> None:
        self.most += 1

    def failed(self) -> None:
        self.most = max(1, self.most // 2)


def pause_before_probe(trips: int, cap: timedelta, wish: timedelta | None, longest_wish: timedelta) -> timedelta:
    """Return the time until the next probe.

    Args:
        trips: probes that failed so far.
        cap: the longest pause of our own.
        wish: what the destination asked for (Retry-After), if anything.
        longest_wish: the longest that it is listened to.
    """
    own = Backoff(min(FIRST_PAUSE, cap), cap).window(trips)
    return own if wish is None else max(own, min(wish, longest_wish))
