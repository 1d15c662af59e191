"""What is explored: how many of what, and which faults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outbox:
    """One space of states of the outbox, all of it; three messages, and no bound on how often anything happens.

    Args:
        workers: 1 to 3. Each may crash, or stall past its lease and go on, at any step.
        keys: the key of each message.
        limit: attempts of a message, 2 or 3.
        manual: the set of messages with recovery ``manual``, as a bit mask.
        operator: 0 none, 1 retries, skips and reaps at once, 2 in the steps of their transactions.
        answers_lost: connections are cut at a finalize's COMMIT, before or after it took effect.
        enqueues: messages are committed while others are claimed.
        fine: claims lock in three steps, and others go on in between.
    """

    workers: int = 2
    keys: str = "001"
    limit: int = 2
    manual: int = 0
    operator: int = 0
    answers_lost: bool = False
    enqueues: bool = False
    fine: bool = False

    model = "outbox"

    def environment(self, variant: int) -> str:
        """Return what the compiled model reads."""
        numbers = (self.limit, self.manual, self.operator, self.answers_lost, self.enqueues, self.fine)
        return ",".join([str(variant), str(self.workers), self.keys, *(str(int(each)) for each in numbers)])


@dataclass(frozen=True, slots=True)
class Inbox:
    """The inbox under redelivery: consumers that crash anywhere.

    Args:
        consumers: 1 to 3.
    """

    consumers: int = 3

    model = "inbox"

    def environment(self, variant: int) -> str:
        """Return what the compiled model reads."""
        return f"{variant},{self.consumers}"


Space = Outbox | Inbox

REDUCED: dict[str, Space] = {
    "two workers, two keys": Outbox(workers=2),
    "one worker and an operator, one message is manual": Outbox(workers=1, operator=1, manual=1),
    "three consumers": Inbox(),
}
"""What `make test` explores of fencepost as it is."""

FULL: dict[str, Space] = {
    "three workers, two keys": Outbox(workers=3),
    "three workers, one key": Outbox(workers=3, keys="000"),
    "three workers, two keys, messages come meanwhile": Outbox(workers=3, enqueues=True),
    "three workers, two keys, claims in small steps": Outbox(workers=3, fine=True),
    "three workers, two keys, three attempts": Outbox(workers=3, limit=3),
    "two workers, two keys, answers are lost, claims in small steps": Outbox(answers_lost=True, fine=True),
    "a worker and an operator in small steps, two keys, one message is manual": Outbox(
        workers=1, operator=2, manual=1, fine=True
    ),
    "a worker and an operator in small steps, one key, answers are lost": Outbox(
        workers=1, keys="000", operator=2, answers_lost=True, fine=True
    ),
    "three workers, two keys, answers are lost": Outbox(workers=3, answers_lost=True),
    "two workers and an operator, one key": Outbox(keys="000", operator=1),
    "three consumers": Inbox(),
}
"""What ``--full`` explores of fencepost as it is."""

LARGE: dict[str, Space] = {
    "two workers and an operator, two keys": Outbox(operator=1),
    "three workers and an operator, one key": Outbox(workers=3, keys="000", operator=1),
    "three workers and an operator, two keys": Outbox(workers=3, operator=1),
}
"""Tens of millions of states, perhaps far more: only one by one, with ``--space``."""
