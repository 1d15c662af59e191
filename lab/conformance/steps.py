"""What can happen in a history. Rows and claims are named by how many come after them, so any mix makes sense."""

from __future__ import annotations

from dataclasses import dataclass

Places = tuple[int, ...]
"""Which of several things, counted from the newest; what is not there is left out."""


@dataclass(frozen=True)
class Step:
    """Something that one session does."""


@dataclass(frozen=True)
class Begin(Step):
    """It begins a transaction, unless it is in one."""


@dataclass(frozen=True)
class End(Step):
    """It ends its transaction."""

    commits: bool


@dataclass(frozen=True)
class Pass(Step):
    """Time passes, unless a transaction is open."""

    minutes: int


@dataclass(frozen=True)
class Lose(Step):
    """Somebody deletes a row by hand, unless a transaction is open: what waited behind it is stranded."""

    row: int


# --- producers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enqueue(Step):
    """A producer enqueues messages: one by `enqueue`, more in one call of `enqueue_many`."""

    keys: tuple[str | None, ...]
    queue: str
    delay: int
    recovery: str
    dedupe: str | None
    payload: int


# --- workers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim(Step):
    """A worker claims normal messages."""

    worker: str
    queue: str | None
    batch: int
    lease: int
    limit: int
    longest_run: int | None
    park_behind_leased: bool


@dataclass(frozen=True)
class ClaimWithinRate(Step):
    """A worker claims as much as the rate of a queue leaves."""

    worker: str
    queue: str
    batch: int


@dataclass(frozen=True)
class ClaimSuspects(Step):
    """A worker claims what may have crashed another."""

    worker: str
    queue: str
    batch: int
    limit: int
    max_reclaims: int
    spare_attempts: int


@dataclass(frozen=True)
class Heartbeat(Step):
    """A worker extends leases, some of them lost long ago."""

    claims: Places
    lease: int


@dataclass(frozen=True)
class Finalize(Step):
    """A worker writes results, each by its word: done, retry, defer, dead, release, expand."""

    claims: Places
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Release(Step):
    """A worker gives messages back whose attempt counts."""

    claims: Places


@dataclass(frozen=True)
class Reap(Step):
    """What nobody may take over is buried."""

    queue: str
    limit: int
    max_attempts: int


# --- operators and upkeep ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retry(Step):
    """An operator puts dead messages back."""

    rows: Places


@dataclass(frozen=True)
class Skip(Step):
    """An operator closes dead messages."""

    rows: Places


@dataclass(frozen=True)
class Pause(Step):
    """An operator pauses a queue, or resumes it."""

    queue: str
    paused: bool


@dataclass(frozen=True)
class Change(Step):
    """An operator changes settings of a queue: its limit of attempts for the reaper, whether it counts, its rate,
    and whether its attempts are written down."""

    queue: str
    max_attempts: int | None
    sequenced: bool
    every: int | None
    """Minutes for each message; 0 for a rate that nothing here exhausts."""
    ledger: bool


@dataclass(frozen=True)
class PromoteStranded(Step):
    """What is parked with nothing before it is made due."""


@dataclass(frozen=True)
class Purge(Step):
    """What was done long ago is deleted."""

    older_than: int
    limit: int


@dataclass(frozen=True)
class Stats(Step):
    """Somebody counts."""


@dataclass(frozen=True)
class Read(Step):
    """Somebody looks at everything; see `lab.conformance.work.READINGS`."""

    rows: Places


# --- consumers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accept(Step):
    """A consumer takes a message in."""

    message: str
    fence: int | None
    body: int | None


@dataclass(frozen=True)
class AcceptNumber(Step):
    """A consumer takes in the next message of a key."""

    key: str
    number: int
    allow_gap: bool


@dataclass(frozen=True)
class Admit(Step):
    """A receiver checks a fencing token."""

    resource: str
    token: int


@dataclass(frozen=True)
class Forget(Step):
    """A consumer forgets what it took in long ago, or a receiver what it has seen."""

    what: str
    older_than: int
    limit: int


# --- breakers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Break(Step):
    """A worker tells what it saw of a destination: failed, delivered, probe, close, reopen."""

    queue: str
    what: str


History = tuple[tuple[int, Step], ...]
"""Sessions and what they do, in order."""
