"""The promise of `publish_batch`: once a message of a key has failed, nothing more of that key goes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.core.records import Message
from fencepost.errors import Retryable

BEHIND = "not sent: an earlier message of its key failed"


class Outcomes:
    """One outcome for each message of a batch, and from which place on a key is stopped."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._outcomes: list[Exception | None] = [None] * len(messages)
        self._stopped: dict[str, int] = {}
        """Key to the first place that failed; one before it may still go."""

    def failed(self, place: int, error: Exception) -> None:
        """Note that the message at this place failed, and stop its key."""
        self._outcomes[place] = error
        key = self._messages[place].ordering_key
        if key is not None:
            self._stopped[key] = min(place, self._stopped.get(key, place))

    def may_go(self, place: int) -> bool:
        """Tell whether the message at this place may be sent; where not, its outcome says so from now on."""
        if self._outcomes[place] is not None:
            return False
        key = self._messages[place].ordering_key
        if key is not None and self._stopped.get(key, place) < place:
            self._outcomes[place] = Retryable(BEHIND)
            return False
        return True

    def as_list(self) -> list[Exception | None]:
        """Return the outcomes, one for each message; None is delivered."""
        return list(self._outcomes)


def rounds(messages: Iterable[Message]) -> list[list[int]]:
    """Return the places of a batch in rounds, each with at most one message of a key.

    For a destination that may take some of a request and refuse others: what is behind in its key goes with a
    later request, when the one before has its answer. Messages without a key all go in the first round.
    """
    found: list[list[int]] = []
    seen: dict[str, int] = {}
    for place, message in enumerate(messages):
        turn = 0
        if message.ordering_key is not None:
            turn = seen[message.ordering_key] = seen.get(message.ordering_key, -1) + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found
