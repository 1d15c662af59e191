"""What the holder of a job writes, each time behind the fence: heartbeat, done, back to the queue, failed.

The fence is ``status = 'processing' AND attempt_token = token``, row by row. A row that already stands in the very
target state under the token is a success: its finalize was repeated, as its first answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fencepost.core.error_text import storable
from fencepost.core.job import ClaimedJob
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.lease import lost
from fencepost.core.ledger import AttemptResult, Ended, Kind, result_of
from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.store.catalog import Catalog
from fencepost.store.ledger import close_attempts
from fencepost.store.limits import seconds


def heartbeat(
    catalog: Catalog, claimed: Sequence[ClaimedJob], lease: timedelta, progress: Mapping[int, str] | None = None
) -> Operation[frozenset[int]]:
    """Extend the leases to ``lease`` from now; return the ids whose lease is lost.

    Args:
        progress: JSON text by id, of the jobs that have come further.
    """
    progress = progress or {}
    params = _held(claimed)
    rows = yield catalog.statement(
        "job_heartbeat",
        params | {"lease": seconds(lease), "progress": [progress.get(each) for each in params["ids"]]},
    )
    kept = {row[0] for row in rows}
    if len(kept) < len(claimed):
        # Skipped, as it is locked, or gone? A row that is being finalized right now still stands here.
        rows = yield catalog.statement("job_held", _held([each for each in claimed if each.id not in kept]))
        kept |= {row[0] for row in rows}
    return lost((each.id for each in claimed), kept)


@dataclass(frozen=True, slots=True)
class Finished:
    """How one job ended, and what its handler returned, as JSON text, where that is kept."""

    claimed: ClaimedJob
    action: Action
    result: str | None = None


def finalize(catalog: Catalog, finished: Sequence[Finished]) -> Operation[frozenset[int]]:
    """Write every decision behind its fence; return the ids whose lease was lost, of which nothing was changed.

    Where a ledger is kept it needs a transaction around it: an attempt ends with its result.
    """
    done: list[Finished] = []
    requeued: list[Finished] = []
    failed: list[Finished] = []
    for each in finished:
        match each.action:
            case Done():
                done.append(each)
            case Dead():
                failed.append(each)
            case _:
                requeued.append(each)
    if any(each.claimed.ledger for each in finished) and sum(map(bool, (done, requeued, failed))) > 1:
        yield catalog.statement("job_lock", _held([each.claimed for each in finished]))
    lost_ids = yield from _mark_done(catalog, done)
    lost_ids |= yield from _requeue(catalog, requeued)
    lost_ids |= yield from _fail(catalog, failed)
    ended = [_ended(each, each.claimed.id in lost_ids) for each in finished if each.claimed.ledger]
    yield from close_attempts(catalog, Kind.JOB, ended)
    return lost_ids


def _ended(finished: Finished, lease_lost: bool) -> Ended:
    result, error = result_of(finished.action)
    if result is AttemptResult.DELIVERED:
        result = AttemptResult.COMPLETED
    claimed = finished.claimed
    return Ended(claimed.id, str(claimed.fence), claimed.owner, result, error, lease_lost)


def _mark_done(catalog: Catalog, done: Sequence[Finished]) -> Operation[frozenset[int]]:
    results = [each.result for each in _in_order(done)]
    # Without any there is no place to look for in each row.
    columns: dict[str, Any] = {"results": None if not any(results) else results}
    return (
        yield from _write(catalog, "job_done", done, columns, JobState.DONE, [JobOutcome.COMPLETED] * len(done))
    )


def _requeue(catalog: Catalog, requeued: Sequence[Finished]) -> Operation[frozenset[int]]:
    actions = [each.action for each in _in_order(requeued)]
    columns: dict[str, Any] = {
        "refunds": [isinstance(a, Release) or (isinstance(a, Reschedule) and a.refund_attempt) for a in actions],
        "delays": [seconds(a.delay) if isinstance(a, Reschedule) else None for a in actions],
        "errors": [storable(a.error) if isinstance(a, Reschedule) else None for a in actions],
    }
    return (yield from _write(catalog, "job_requeue", requeued, columns, JobState.QUEUED, [None] * len(requeued)))


def _fail(catalog: Catalog, failed: Sequence[Finished]) -> Operation[frozenset[int]]:
    dead = [each.action for each in _in_order(failed) if isinstance(each.action, Dead)]
    outcomes: list[JobOutcome | None] = [JobOutcome(str(each.outcome)) for each in dead]
    columns: dict[str, Any] = {
        "errors": [storable(each.error) for each in dead],
        "outcomes": [str(each) for each in outcomes],
    }
    return (yield from _write(catalog, "job_fail", failed, columns, JobState.FAILED, outcomes))


def _write(
    catalog: Catalog,
    statement: str,
    finished: Sequence[Finished],
    columns: dict[str, Any],
    state: JobState,
    outcomes: Sequence[JobOutcome | None],
) -> Operation[frozenset[int]]:
    if not finished:
        return frozenset()
    claimed = [each.claimed for each in _in_order(finished)]
    rows = yield catalog.statement(statement, _held(claimed) | columns)
    written = {row[0] for row in rows}
    if len(written) == len(finished):
        return frozenset()
    missing = [place for place, each in enumerate(claimed) if each.id not in written]
    targets = [outcomes[place] for place in missing]
    rows = yield catalog.statement(
        "job_finalized",
        _held([claimed[place] for place in missing])
        | {"status": str(state), "outcomes": [None if each is None else str(each) for each in targets]},
    )
    return lost((claimed[place].id for place in missing), {row[0] for row in rows})


def _in_order(finished: Sequence[Finished]) -> list[Finished]:
    # By id, so that two workers who write the same rows lock them in the same order.
    return sorted(finished, key=lambda each: each.claimed.id)


def _held(claimed: Sequence[ClaimedJob]) -> dict[str, Any]:
    ordered = sorted(claimed, key=lambda each: each.id)
    return {"ids": [each.id for each in ordered], "tokens": [each.token for each in ordered]}
