"""What is published one after another, what at once, and how many slots of its queue that takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fencepost.publishers.callable import Invocable
from fencepost.runtime.held import Holding, Stage
from fencepost.runtime.routes import Router
from fencepost.runtime.threads import Threads

LINGER = 0.01
"""Seconds to wait for more free slots before a claim that could not fill a batch: claims cost the database."""

BATCHES_AHEAD = 2
"""Batches that are claimed ahead of their turn: one that waits, and one that is being claimed beside it."""

FAST = 0.1
"""Seconds that a publish takes on average, below which batches are claimed ahead: what is claimed ahead then waits
no longer than about twice that, far less than any lease."""

LONGEST_RUN_SECONDS = 1.0
"""How long the run of one ordering key may take to publish, about."""

_FIRST_GUESS = FAST
_WEIGHT_OF_THE_LAST = 0.2
_ONE_IN = 8


@dataclass(slots=True, eq=False)
class Lane:
    """Messages that share a task.

    Args:
        holdings: published one after another, in this order; what did not begin is given back where one fails.
        bulk: instead published at once, by this publisher.
        landed: how many are over.
    """

    holdings: Sequence[Holding]
    bulk: Invocable | None = None
    landed: int = 0
    has_begun: bool = False

    @property
    def queue(self) -> str:
        return self.holdings[0].terms.queue

    @property
    def width(self) -> int:
        """Slots that it takes."""
        return len(self.holdings) if self.bulk is not None else 1

    @property
    def publishing(self) -> list[Holding]:
        """Its publishes that run now."""
        return [each for each in self.holdings if each.stage is Stage.PUBLISHING]

    @property
    def is_over(self) -> bool:
        return all(each.stage is Stage.FINALIZING for each in self.holdings)


def lanes_of(holdings: Sequence[Holding], router: Router, widest: int) -> list[Lane]:
    """Divide what was claimed of one queue into lanes, in its order.

    Messages of an ordering key share a lane. Whatever goes to a publisher that takes batches goes there in one,
    keys in their order, unless a key's messages go to several publishers, or one of them is to be verified first.

    Args:
        widest: messages in one batch, at most, unless those of one key are more.
    """
    keys: dict[str, list[Holding]] = {}
    lanes: list[Lane] = []
    bulks: dict[int, tuple[Invocable, list[list[Holding]]]] = {}
    groups: list[list[Holding]] = []
    for holding in holdings:
        key = holding.claimed.message.ordering_key
        if key is None:
            groups.append([holding])
        elif key in keys:
            keys[key].append(holding)
        else:
            keys[key] = [holding]
            groups.append(keys[key])
    for group in groups:
        publisher = _batch_publisher(group, router)
        if publisher is None:
            lanes.append(Lane(group))
        else:
            bulks.setdefault(id(publisher), (publisher, []))[1].append(group)
    for publisher, together in bulks.values():
        lanes += [Lane(batch, publisher) for batch in _packed(together, widest)]
    return lanes


def _packed(groups: Iterable[Sequence[Holding]], widest: int) -> Iterator[list[Holding]]:
    """Put groups together into batches, none of them in two: these might be published at once, or out of turn."""
    batch: list[Holding] = []
    for group in groups:
        if batch and len(batch) + len(group) > widest:
            yield batch
            batch = []
        batch.extend(group)
    yield batch


def _batch_publisher(group: Sequence[Holding], router: Router) -> Invocable | None:
    if any(holding.claimed.is_to_verify for holding in group):
        return None
    publishers = [router.find(holding.terms.queue, holding.claimed) for holding in group]
    first = publishers[0]
    if not isinstance(first, Invocable) or first.call_batch is None:
        return None
    return None if any(each is not first for each in publishers) else first


class Slots:
    """What one queue has in flight and in line in this process."""

    def __init__(self, limit: int, on_thread_end: Callable[[], None], on_hung: Callable[[int], None]) -> None:
        self.limit = limit
        self.taken = 0
        self.line: deque[Lane] = deque()
        self.threads = Threads(on_thread_end, on_hung)
        self.stuck = 0
        """How many of the taken ones stay taken by publishes that were given up on."""
        self.short_since: float | None = None
        """Since when it has had room for less than a batch, and nothing in line."""
        self._pace = self._each = _FIRST_GUESS  # seconds of a publish, and of a message
        self._begun = 0

    @property
    def is_idle(self) -> bool:
        return not self.taken and not self.line and not self.threads.abandoned

    @property
    def longest_run(self) -> int:
        return max(1, int(LONGEST_RUN_SECONDS / self._each))

    def is_watched(self) -> bool:
        """Tell whether to take the time of the next lane: of one in eight, and of the first ones."""
        self._begun += 1
        return self._begun % _ONE_IN == 0 or self._begun < _ONE_IN

    def paced(self, seconds: float, messages: int) -> None:
        """Note how long a publish took, and how many messages went out with it."""
        self._pace += _WEIGHT_OF_THE_LAST * (max(seconds, 0.0001) - self._pace)
        self._each += _WEIGHT_OF_THE_LAST * (max(seconds / messages, 0.0001) - self._each)

    def fits(self, lane: Lane) -> bool:
        if self.taken + self.threads.abandoned + lane.width <= self.limit:
            return True
        # Wider than what will ever be free: it goes when nothing else does.
        return self.taken == self.stuck and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """Whether publishes that do not end hold every slot."""
        return self.stuck + self.threads.abandoned >= self.limit

    def claimable(self, batch: int, unwritten: int, now: float) -> int:
        """Return how many messages are worth claiming now; 0 where it is better to wait for more room."""
        free = self._free(batch) - unwritten
        if free >= min(batch, self.limit):
            self.short_since = None
            return free
        if free < 1 or self.line:
            self.short_since = None
            return 0
        if self.short_since is None:
            self.short_since = now
        if now < self.short_since + LINGER:
            return 0
        self.short_since = None
        return free

    def may_claim(self, batch: int) -> bool:
        """Tell whether it is worth asking `claimable` now that a publish is over."""
        return not self.line or self._free(batch) >= min(batch, self.limit)

    def _free(self, batch: int) -> int:
        ahead = BATCHES_AHEAD * min(batch, self.limit) if self._pace < FAST and not self.is_stuck else 0
        in_line = sum(lane.width for lane in self.line)
        return self.limit + ahead - self.taken - self.threads.abandoned - in_line
