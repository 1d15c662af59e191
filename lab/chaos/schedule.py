"""The schedule of faults: drawn from the seed before anything runs, so that the same seed means the same plan."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

WEIGHTS = {
    "cut": 18.0,
    "backend_terminated": 12.0,
    "lost_answer": 12.0,
    "lost_commit": 10.0,
    "lost_commit_answer": 14.0,
    "black_hole": 6.0,
    "sigstop": 12.0,
    "sigkill": 4.0,
    "sigterm": 3.0,
    "receiver_cut": 6.0,
    "receiver_lost_ack": 5.0,
    "receiver_down": 1.2,
    "receiver_frozen": 1.5,
    "clock_skew": 3.0,
    "server_kill": 0.5,
    "server_immediate": 0.5,
    "server_restart": 0.5,
    "read_only": 0.8,
    "standby_instead": 0.5,
    "failover_sync": 0.5,
    "failover_lossy": 0.3,
    "disk_full": 0.6,
}
"""How often each kind comes; what costs a start of a process or of a server comes less often."""

KINDS = tuple(WEIGHTS)
RARE = 2.0
"""Kinds below this weight come at least once in a plan that covers every kind."""


@dataclass(frozen=True)
class Planned:
    """One fault of the plan.

    Args:
        at: seconds after the faults begin.
        kind: what is done.
        aim: from 0 to 1, which of the possible targets it hits.
        size: from 0 to 1, how long or how far.
    """

    at: float
    kind: str
    aim: float
    size: float


def plan(
    seed: int, duration: float, rate: float, kinds: Collection[str], *, covering: bool = False
) -> list[Planned]:
    """Return a plan in the order of its instants.

    Args:
        seed: where all chance comes from.
        duration: seconds.
        rate: faults a second, on average.
        kinds: those that may come.
        covering: let every rare kind come once, whatever chance says.
    """
    chance = random.Random(f"plan {seed}")
    names = [kind for kind in KINDS if kind in kinds]
    weights = [WEIGHTS[kind] for kind in names]
    found = []
    at = chance.expovariate(rate)
    while at < duration:
        kind = chance.choices(names, weights)[0]
        found.append(Planned(at, kind, chance.random(), chance.random()))
        at += chance.expovariate(rate)
    if covering:
        rare = [kind for kind in names if WEIGHTS[kind] < RARE and all(each.kind != kind for each in found)]
        chance.shuffle(rare)
        for place, kind in enumerate(rare):
            # One after another: two faults of the server cannot be had at once.
            found.append(Planned(duration * (place + 0.5) / len(rare), kind, chance.random(), chance.random()))
    return sorted(found, key=lambda each: each.at)
