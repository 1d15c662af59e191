"""What destinations that take whole batches do alike.

The promise of `publish_batch` is here: once a message of a key has failed, nothing more of that key goes out.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from fencepost.core.records import Message
from fencepost.errors import PublishFailure, Retryable
from fencepost.publishers.base import Delivery, DestinationPublisher, publish_budget

BEHIND = "not sent: an earlier message of its key failed"
TOO_LATE = "not sent before the deadline of its batch"


class Parcel(Protocol):
    """A message as it goes to a destination, and how its publish ended."""

    outcome: Exception | None


Made = TypeVar("Made")
AnyParcel = TypeVar("AnyParcel", bound=Parcel)


class BatchPublisher(DestinationPublisher):
    """The base of publishers to which one message is a batch of one."""

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Publish a batch of one, and raise its outcome; see `publish_batch`."""
        (outcome,) = await self.publish_batch([message], [delivery])
        if outcome is not None:
            raise outcome

    @abstractmethod
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish many, and return an outcome for each; None where this very message was acknowledged."""


class Batch:
    """Messages that go together: until when, an outcome for each, and from which place on a key is stopped.

    A message whose lease is about to end fails alone, at once; the others decide the deadline.

    Args:
        messages: the batch.
        deliveries: one for each message.
        timeout: the most seconds that the batch may take.
    """

    def __init__(self, messages: Sequence[Message], deliveries: Sequence[Delivery], timeout: float) -> None:
        self.messages = messages
        self._outcomes: list[Exception | None] = [None] * len(messages)
        self._stopped: dict[str, int] = {}
        """Key to the first place that failed; one before it may still go."""
        started, budget = time.monotonic(), timeout
        for place, delivery in enumerate(deliveries):
            try:
                budget = min(budget, publish_budget(delivery, timeout))
            except Retryable as failure:
                self.failed(place, failure)
        self.deadline = started + budget
        """When the whole batch must have ended, by `time.monotonic`."""

    def failed(self, place: int, error: Exception) -> None:
        """Note that the message at this place failed, and stop its key."""
        self._outcomes[place] = error
        key = self.messages[place].ordering_key
        if key is not None:
            self._stopped[key] = min(place, self._stopped.get(key, place))

    def may_go(self, place: int) -> bool:
        """Tell whether the message at this place may be sent; where not, its outcome says so from now on."""
        if self._outcomes[place] is not None:
            return False
        key = self.messages[place].ordering_key
        if key is not None and self._stopped.get(key, place) < place:
            self._outcomes[place] = Retryable(BEHIND)
            return False
        return True

    def made(self, places: Iterable[int], make: Callable[[int], Made]) -> dict[int, Made]:
        """Return what is sent for each of these that may go; one for which it cannot be made fails alone."""
        found: dict[int, Made] = {}
        for place in places:
            if self.may_go(place):
                try:
                    found[place] = make(place)
                except PublishFailure as failure:
                    self.failed(place, failure)
        return found

    def outcomes(self) -> list[Exception | None]:
        """Return the outcomes, one for each message; None is delivered."""
        return list(self._outcomes)


async def in_rounds(
    batch: Batch, make: Callable[[int], AnyParcel], send: Callable[[list[AnyParcel], float], Awaitable[None]]
) -> list[Exception | None]:
    """Send a batch in its `rounds`, and return an outcome for each message.

    Args:
        batch: what to send.
        make: makes the parcel for the message at a place, or raises why it cannot be sent.
        send: sends parcels, no two of a key, by the deadline, and sets the outcome of those that failed.
    """
    for places in rounds(batch.messages):
        parcels = batch.made(places, make)
        if parcels and time.monotonic() < batch.deadline:
            await send(list(parcels.values()), batch.deadline)
        else:
            for parcel in parcels.values():
                parcel.outcome = Retryable(TOO_LATE)
        for place, parcel in parcels.items():
            if parcel.outcome is not None:
                batch.failed(place, parcel.outcome)
    return batch.outcomes()


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
