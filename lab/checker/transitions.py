"""The life of a message, written anew from the specification: what each committed change of a row is.

A change that is none of the table's is named by the guarantee that it breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.checker.tables import FAR, Change, State

HEARTBEAT, CLAIM, RECLAIM, OVER_LIMIT = "heartbeat", "claim", "reclaim", "over the limit"
PARK, PROMOTE, REAP = "park", "promote", "reap"
CLOSE, BURY, GIVE_BACK = "close", "bury", "give back"
RETRY, SKIP, INSERT, DELETE = "operator retry", "operator skip", "insert", "delete"
ILLEGAL = "illegal"

BY_HOLDER = frozenset({HEARTBEAT, CLOSE, BURY, GIVE_BACK})
"""Written by who holds the row, behind the fence: they leave its token as it is."""
TAKES = frozenset({CLAIM, RECLAIM})


@dataclass(frozen=True, slots=True)
class Step:
    """A change, what it is, and where it is wrong: (guarantee, why)."""

    change: Change[State]
    event: str
    faults: Sequence[tuple[str, str]] = ()

    @property
    def old(self) -> State:
        assert self.change.old is not None  # noqa: S101 - of an update
        return self.change.old

    @property
    def new(self) -> State:
        assert self.change.new is not None  # noqa: S101 - of an update
        return self.change.new


@dataclass(frozen=True, slots=True)
class Rule:
    """What an event does: by how much it moves the token and the attempts, and which outcomes it may write."""

    event: str
    token: int
    attempts: Sequence[int] | None
    """None: they become 0."""
    outcomes: frozenset[str | None] = frozenset({None})
    needs_expired: bool = False


_DELIVERED = frozenset({"delivered", "expanded"})
_BURIED = frozenset({"permanent", "exhausted", "expired", "unroutable", "unknown_outcome"})
_REAPED = frozenset({"crashed", "unknown_outcome"})
_EXHAUSTED = frozenset({"exhausted"})

_CLAIM = Rule(CLAIM, 1, (1,))
_OVER = Rule(OVER_LIMIT, 1, (0,), frozenset({"exhausted"}))

TABLE: dict[tuple[str, str], Sequence[Rule]] = {
    ("pending", "processing"): (_CLAIM,),
    ("blocked", "processing"): (_CLAIM,),
    ("pending", "dead"): (_OVER,),
    ("blocked", "dead"): (_OVER,),
    ("pending", "blocked"): (Rule(PARK, 0, (0,)),),
    ("blocked", "pending"): (Rule(PROMOTE, 0, (0,)),),
    ("processing", "processing"): (Rule(HEARTBEAT, 0, (0,)), Rule(RECLAIM, 1, (1,), needs_expired=True)),
    ("processing", "done"): (Rule(CLOSE, 0, (0,), _DELIVERED),),
    ("processing", "pending"): (Rule(GIVE_BACK, 0, (0, -1)),),
    ("processing", "dead"): (Rule(BURY, 0, (0,), _BURIED), Rule(REAP, 1, (0,), _REAPED, needs_expired=True)),
    ("dead", "pending"): (Rule(RETRY, 1, None),),
    ("dead", "done"): (Rule(SKIP, 1, (0,), frozenset({"skipped"})),),
}


def step_of(change: Change[State]) -> Step:
    """Say what a change is."""
    if change.op == "INSERT":
        return Step(change, INSERT, list(_born(change.new)))
    if change.op in ("DELETE", "TRUNCATE"):
        return Step(change, DELETE)
    assert change.old is not None and change.new is not None  # noqa: S101, PT018 - of an update
    old, new = change.old, change.new
    if old == new:
        return Step(change, HEARTBEAT if new.status == "processing" else ILLEGAL)
    rules = TABLE.get((old.status, new.status))
    if rules is None:
        return Step(change, ILLEGAL, [_not_in_table(old, new)])
    # Where a status can be reached in two ways, the token tells them apart.
    rule = next((each for each in rules if each.token == new.token - old.token), rules[0])
    if rule is rules[0] and len(rules) > 1 and _is_a_taking(old, new):
        rule = rules[1]
    return Step(change, rule.event, [*_faults(rule, change, old, new)])


def _is_a_taking(old: State, new: State) -> bool:
    """Whether somebody took a leased row, by more than the token: another owner, a charge, a reaper's outcome."""
    if new.status == "processing":
        return new.attempts != old.attempts or new.owner != old.owner or new.reclaims != old.reclaims
    return new.outcome == "crashed"


def _born(new: State | None) -> Sequence[tuple[str, str]]:
    if new is None or (new.status, new.attempts, new.token, new.reclaims) == ("pending", 0, 0, 0):
        return []
    return [("table", f"inserted as {new.status} with {new.attempts} attempts and token {new.token}")]


def _not_in_table(old: State, new: State) -> tuple[str, str]:
    text = f"{old.status} became {new.status}"
    if old.status in ("done", "dead"):
        return "I12", text
    if old.status in ("pending", "blocked") and new.status == "done":
        return "I2", f"{text}: finished by somebody who does not hold it"
    return "table", text


def _faults(rule: Rule, change: Change[State], old: State, new: State) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if new.token - old.token != rule.token:
        found.append(("I9", f"{rule.event} moved the token from {old.token} to {new.token}"))
    if rule.needs_expired and old.lease_until is not None and old.lease_until >= change.statement_at:
        left = (old.lease_until - change.statement_at) / 1e6
        found.append(("I9", f"{rule.event} while the lease of {old.owner} had {left:.3f} s left"))
    if not _attempts_fit(rule, old, new):
        found.append(("I7", f"{rule.event} moved attempts from {old.attempts} to {new.attempts}"))
    if new.outcome not in rule.outcomes:
        found.append(("table", f"{rule.event} wrote outcome {new.outcome}"))
    if rule.event == RECLAIM and old.recovery == "manual":
        found.append(("table", "a message whose outcome is left to a person was taken over"))
    found += [("table", f"{rule.event}: {text}") for text in _misshapen(new)]
    found += [("table", f"{rule.event}: {text}") for text in _miscounted(rule.event, old, new)]
    return found


def _attempts_fit(rule: Rule, old: State, new: State) -> bool:
    if rule.attempts is None:
        return new.attempts == 0
    return any(new.attempts == max(0, old.attempts + change) for change in rule.attempts)


def _misshapen(new: State) -> Sequence[str]:
    """What a row must look like in its state."""
    wrong = []
    if (new.lease_until is not None) != (new.status == "processing"):
        wrong.append(f"{new.status} with lease end {new.lease_until}")
    if (new.done_at is not None) != (new.status == "done"):
        wrong.append(f"{new.status} with done_at {new.done_at}")
    if (new.available_at == FAR) != (new.status in ("blocked", "dead")) and new.status != "done":
        wrong.append(f"{new.status} with available_at {new.available_at}")
    return wrong


def _miscounted(event: str, old: State, new: State) -> Sequence[str]:
    """`reclaims` counts takings of expired leases, and an operator's retry clears it."""
    wanted = {RECLAIM: old.reclaims + 1, RETRY: 0}.get(event, old.reclaims)
    return [] if new.reclaims == wanted else [f"reclaims went from {old.reclaims} to {new.reclaims}"]
