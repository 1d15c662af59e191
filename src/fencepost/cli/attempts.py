"""``attempts``: what the ledger has of a message, and why there was more than one attempt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.messages import identity_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Cell, Output
from fencepost.config import Settings
from fencepost.core.ledger import CAUSE_TEXTS, Attempt

HEADERS = ("token", "attempt", "worker", "started", "seconds", "result", "made_because", "error")


@click.command()
@takes_settings(*STORE)
@click.argument("identity", metavar="ID")
@json_option
def attempts(invocation: Invocation, settings: Settings, identity: str, as_json: bool) -> int:
    """Show the attempts at a message, and why there was another one.

    ID is its id (a number) or its message id (a UUID). Attempts are written down in queues that keep a ledger
    (`fencepost queue set QUEUE --ledger`), and kept for as long as ledger_retention says.
    """
    with invocation.connected(settings, "attempts") as connection:
        found = outbox_of(settings).attempts(connection, identity_of(identity))
    out = invocation.out
    if as_json:
        out.json([attempt_as_json(each) for each in found])
        return exits.OK if found else exits.NEGATIVE
    if not found:
        out.note(
            f"the ledger has no attempt at {identity}: does its queue keep one? (`fencepost queue show QUEUE`)"
        )
        return exits.NEGATIVE
    rows = list(dict.fromkeys(each.row_id for each in found))
    for number, row_id in enumerate(rows):
        of_row = [each for each in found if each.row_id == row_id]
        if len(rows) > 1:
            out.line(f"{chr(10) if number else ''}message {row_id}, queue {of_row[0].queue}")
        show_attempts(out, of_row)
    return exits.OK


def show_attempts(out: Output, made: Sequence[Attempt]) -> None:
    """Print the attempts at one row, and below them what may be a duplicate."""
    out.table(HEADERS, [_row(each) for each in made], cut=True)
    for each in made:
        if each.is_repeat and each.cause is not None and (each.may_have_arrived or each.result is None):
            out.line(f"token {each.token} may be a duplicate: of the attempt before it, {CAUSE_TEXTS[each.cause]}")


def _row(attempt: Attempt) -> list[Cell]:
    result = "under way" if attempt.result is None else str(attempt.result)
    return [
        attempt.token,
        attempt.attempt,
        attempt.worker,
        attempt.started_at,
        None if (took := _seconds(attempt)) is None else f"{took.total_seconds():.3f}",
        f"{result}, lease lost" if attempt.lease_lost else result,
        attempt.cause,
        attempt.error,
    ]


def _seconds(attempt: Attempt) -> timedelta | None:
    return None if attempt.ended_at is None else attempt.ended_at - attempt.started_at


def attempt_as_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt for programs."""
    return {
        "row_id": attempt.row_id,
        "token": attempt.token,
        "queue": attempt.queue,
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "result": attempt.result,
        "lease_lost": attempt.lease_lost,
        "cause": attempt.cause,
        "is_repeat": attempt.is_repeat,
        "error": attempt.error,
    }
