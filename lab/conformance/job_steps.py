"""What can happen to jobs, their schedules and the ledger in a history; see `lab.conformance.steps`."""

from __future__ import annotations

from dataclasses import dataclass

from lab.conformance.steps import Places, Step


@dataclass(frozen=True)
class JobStep(Step):
    """Something that is done to jobs."""


# --- producers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnqueueJob(JobStep):
    """A producer enqueues a job; ``lane`` is the key that its task's limit counts by."""

    task: str
    lane: str | None
    queue: str
    unique: str | None
    args: int
    delay: int
    recovery: str
    max_attempts: int


# --- workers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookForJobs(JobStep):
    """A worker looks what there is."""

    queue: str | None


@dataclass(frozen=True)
class Terms:
    """What a worker knows of the tasks t and u; x it does not know."""

    worker: str
    lease: int
    width: int
    """Jobs of one lane of a task at once."""
    limit: int
    """Jobs of one task at once, as far as they have a lane."""
    ledger: bool


@dataclass(frozen=True)
class ClaimJobs(JobStep):
    """A worker claims jobs that have no limit."""

    terms: Terms
    queue: str
    batch: int


@dataclass(frozen=True)
class ClaimLanes(JobStep):
    """A worker claims jobs that have one; its walk through the lanes goes on where its last one ended."""

    terms: Terms
    queue: str
    batch: int


@dataclass(frozen=True)
class ClaimJobSuspects(JobStep):
    """A worker claims jobs that may have crashed another."""

    terms: Terms
    queue: str
    batch: int
    max_reclaims: int
    spare_attempts: int


@dataclass(frozen=True)
class BeatJobs(JobStep):
    """A worker extends leases, some of them lost long ago, and says how far it has come."""

    claims: Places
    lease: int
    progress: int | None


@dataclass(frozen=True)
class FinishJobs(JobStep):
    """A worker writes results, each by its word; see `lab.conformance.job_work.ACTIONS`."""

    claims: Places
    actions: tuple[str, ...]


@dataclass(frozen=True)
class ReclaimJobs(JobStep):
    """What has expired is taken back."""

    limit: int


# --- operators and upkeep ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetryJobs(JobStep):
    """An operator puts failed jobs back."""

    rows: Places


@dataclass(frozen=True)
class EndJobs(JobStep):
    """An operator cancels open jobs, or fails them."""

    rows: Places
    cancels: bool


@dataclass(frozen=True)
class PurgeJobs(JobStep):
    """What was done long ago is deleted."""

    older_than: int
    limit: int


@dataclass(frozen=True)
class CountJobs(JobStep):
    """Somebody counts."""


# --- schedules -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegisterSchedule(JobStep):
    """A worker starts that has a schedule; ``every`` so many minutes."""

    name: str
    every: int


@dataclass(frozen=True)
class SignSchedules(JobStep):
    """A worker gives a sign of life."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class LookAtSchedules(JobStep):
    """A worker looks how far they have come."""

    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Tick(JobStep):
    """A worker enqueues what is due of a schedule; ``unique``: at most one open job of it."""

    name: str
    every: int
    adopts: bool
    unique: bool


# --- the ledger ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadLedger(Step):
    """Somebody asks for the attempts at rows of both kinds."""

    rows: Places


@dataclass(frozen=True)
class PurgeLedger(Step):
    """Attempts that began long ago are deleted."""

    older_than: int
    limit: int
