"""What was seen of a schedule: tokens, publishes, what is open, and the guarantees that were broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lab.simulator.judge import Judge, Label

if TYPE_CHECKING:
    from lab.simulator.process import Client, DispatcherProcess
    from lab.simulator.run import MessageRun


def number_in(payload: str | bytes | None) -> int:
    """Return the number of a message, which is all that its payload says."""
    return int((payload or "")[5:-1])


@dataclass(slots=True, eq=False)
class Lease:
    """One token of one row: who has it, since when, and how it ended."""

    process: Client
    label: Label
    since: float
    until: int
    """Its end in the database, as last written, in microseconds."""
    ended: str | None = None
    out_of_turn: bool = False


@dataclass(slots=True, eq=False)
class Publish:
    """One publish, as it was started."""

    number: int
    nth: int
    row_id: int
    token: int
    process: DispatcherProcess
    at: float
    cause: str | None
    """Why there was another one after the one before; None for the first."""
    told: str | None = None
    is_said_to_be_delivered: bool = False
    """In time or not: whoever ignored its time-out may be heard all the same, or not."""
    is_on_its_way: bool = False
    """It has not arrived, and will, or may."""
    accepted_at: list[float] = field(default_factory=list)


class Seen(Judge):
    """What was seen of one schedule so far, and what was found wrong."""

    _run: MessageRun

    def __init__(self, run: MessageRun) -> None:
        super().__init__(run)
        self.leases: dict[tuple[int, int], Lease] = {}
        self.publishes: dict[int, list[Publish]] = {}
        """By row id."""
        self.rows_of: dict[int, int] = {}
        """Row ids by message numbers."""
        self.keys: dict[str, list[int]] = {}
        """Row ids of each key, in id order."""
        self.open: set[int] = set()
        self.dead: set[int] = set()
        self.touched: set[int] = set()
        """Rows that an operator had a hand in."""
        self.first_accepted: dict[str, int] = {}
        """Of each key, the highest row id that was accepted, and not touched."""
        self.attempts: set[tuple[int, str]] = set()
        """Row ids and tokens in the ledger; without those that have ended."""
        self.claimed_at: list[float] = []
        self.handed_over: set[tuple[int, int]] = set()
        """Row ids and tokens of what a publisher of batches has been given."""
        self.verified: set[tuple[int, int]] = set()
        """Row ids and tokens of which a receiver has said that they had arrived before."""
        self.done_by: Counter[Label] = Counter()
        self.commits = 0
