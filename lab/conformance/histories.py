"""How histories are made up: by Hypothesis, which also makes one that disagrees simpler.

A history is one draw of bytes, eight for each step, since a draw for each choice would take longer than the
history itself. Zeros stand for the first of all choices, so that a simpler draw is a simpler history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lab.conformance import job_histories as jobs
from lab.conformance import job_steps as j
from lab.conformance import steps as s
from lab.conformance.dice import Dice

STEPS = 9
"""Draws for each history."""

_BYTES = 8


QUEUES = ("q", "q", "q", "r")
WORKERS = ("w1", "w2")
_ALL: s.Places = (0, 1, 2, 3, 4, 5)
_OLDEST: s.Places = (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
PLACES: tuple[s.Places, ...] = (
    *((0,), (0, 1, 2, 3, 4, 5), (1,), (0, 1), (2,), (1, 3), (3,), (5,), (8,)),
    # The oldest claims first: of a row that was claimed again, the stale one.
    *(_OLDEST, (5, 4, 3, 2, 1, 0)),
)
LIMITS = (3, 3, 2, 1)
BOTH = (False, True)
KEYS: tuple[tuple[str | None, ...], ...] = (
    *((None,), (None, None, None), ("a",), ("a", "a"), ("b",), (None, "a", "b", "a"), ("b", "b", "b")),
)
ACTIONS = (
    *[("done",)] * 4,
    *(("retry",), ("defer",), ("dead",), ("release",)),
    *(("done", "retry"), ("done", "done", "dead"), ("defer", "done"), ("release", "done"), ("expand",)),
)
BREAKS = ("failed", "failed", "delivered", "probe", "close", "reopen")
RECOVERIES = ("auto", "auto", "manual", "verify")


def _enqueue(dice: Dice) -> s.Step:
    return s.Enqueue(
        keys=dice.pick(KEYS),
        queue=dice.pick(QUEUES),
        delay=dice.pick((0, 0, 0, 1, 5)),
        recovery=dice.pick(RECOVERIES),
        dedupe=dice.pick((None, None, None, "x", "y")),
        payload=dice.pick((0, 0, 0, 1)),
    )


def _claim(dice: Dice) -> s.Step:
    return s.Claim(
        worker=dice.pick(WORKERS),
        queue=dice.pick(("q", "q", None, "r")),
        batch=dice.pick((10, 5, 1, 2, 3)),
        lease=dice.pick((1, 3)),
        limit=dice.pick(LIMITS),
        longest_run=dice.pick((None, None, 1, 2)),
        park_behind_leased=dice.pick(BOTH),
    )


def _claim_suspects(dice: Dice) -> s.Step:
    return s.ClaimSuspects(
        worker=dice.pick(WORKERS),
        queue=dice.pick(QUEUES),
        batch=dice.pick((1, 1, 3)),
        limit=dice.pick(LIMITS),
        max_reclaims=dice.pick((9, 9, 1)),
        spare_attempts=dice.pick((0, 0, 1)),
    )


def _change(dice: Dice) -> s.Step:
    return s.Change(
        queue=dice.pick(QUEUES),
        max_attempts=dice.pick((None, 2, 3)),
        sequenced=dice.pick(BOTH),
        every=dice.pick((None, None, 1, 2, 0)),
        ledger=dice.pick(BOTH),
    )


KINDS: tuple[tuple[int, Callable[[Dice], s.Step]], ...] = (
    (6, _enqueue),
    (14, _claim),
    (5, _claim_suspects),
    (14, lambda dice: s.Finalize(dice.pick(PLACES), dice.pick(ACTIONS))),
    (3, lambda dice: s.Heartbeat(dice.pick(PLACES), dice.pick((1, 3)))),
    (2, lambda dice: s.Release(dice.pick(PLACES))),
    (10, lambda dice: s.Pass(dice.pick((2, 1, 4, 10)))),
    (3, lambda dice: s.Reap(dice.pick(QUEUES), dice.pick((10, 1)), dice.pick(LIMITS))),
    (2, lambda dice: s.Retry(dice.pick(PLACES))),
    (2, lambda dice: s.Skip(dice.pick(PLACES))),
    (2, lambda dice: s.Pause(dice.pick(QUEUES), dice.pick((True, False, False)))),
    (4, _change),
    (4, lambda dice: s.ClaimWithinRate(dice.pick(WORKERS), dice.pick(QUEUES), dice.pick((10, 1, 2)))),
    (1, lambda dice: s.Purge(dice.pick((0, 2)), dice.pick((10, 1)))),
    (1, lambda _: s.PromoteStranded()),
    (2, lambda _: s.Stats()),
    (2, lambda dice: s.Accept(dice.pick(("m", "n")), dice.pick((None, 1, 2)), dice.pick((None, None, 0, 1)))),
    (1, lambda dice: s.AcceptNumber(dice.pick(("k", "l")), dice.pick((1, 2, 3, 4)), dice.pick(BOTH))),
    (1, lambda dice: s.Admit(dice.pick(("f", "g")), dice.pick((1, 2, 3)))),
    (2, lambda dice: s.Break(dice.pick(QUEUES), dice.pick(BREAKS))),
    (2, lambda dice: s.Lose(dice.pick((0, 1, 2, 3)))),
    (1, lambda dice: s.Forget(dice.pick(("inbox", "fence")), dice.pick((0, 2)), dice.pick((10, 1)))),
    (2, lambda dice: s.Read(dice.pick(PLACES))),
    (2, lambda dice: j.ReadLedger(dice.pick(PLACES))),
    (1, lambda dice: j.PurgeLedger(dice.pick((0, 2)), dice.pick((10, 1)))),
)
_WEIGHTED = tuple(make for weight, make in KINDS for _ in range(weight))

_TRANSACTIONS: tuple[Callable[[Dice], s.Step], ...] = (
    *[lambda _: s.Begin()] * 2,
    lambda dice: s.End(commits=dice.pick((True, True, False))),
)


def history_of(drawn: bytes) -> s.History:
    """Return the history that these bytes stand for.

    The first one says whether a second session takes part, and whether it is about jobs: one in three is.
    """
    first = drawn[0] if drawn else 0
    is_alone = first % 2 == 0
    kind = JOBS if first // 2 % 3 == 2 else MESSAGES
    numbers = [int.from_bytes(drawn[at : at + _BYTES], "little") for at in range(1, len(drawn), _BYTES)]
    history: list[tuple[int, s.Step]] = [] if is_alone else [(1, s.Begin())]
    for place, number in enumerate(numbers):
        dice = Dice(number)
        if place < _FIRST:
            history.append((0, kind.first(dice)))
        elif is_alone:
            history += [(0, step) for step in _steps(dice, kind)]
        else:
            history += _steps_of_two(dice, kind)
    return tuple(history)


_FIRST = 2
"""Messages, or jobs, come first: where there is nothing, nothing happens."""


Collision = tuple[tuple[s.Step, ...], s.Step, s.Step]
"""What two sessions do to the same things, and what is done before."""


@dataclass(frozen=True)
class _Kind:
    """What a history is about."""

    first: Callable[[Dice], s.Step]
    steps: tuple[Callable[[Dice], s.Step], ...]
    motifs: tuple[Callable[[Dice], tuple[s.Step, ...]], ...]
    """What makes sense one after the other, and would seldom come so by chance."""
    collisions: tuple[Callable[[Dice], Collision], ...]


def _take_over(dice: Dice) -> tuple[s.Step, ...]:
    """Make leases end, and somebody take over: what is done under the older ones from now on is stale."""
    steps = (s.Pass(4), s.ClaimSuspects("w2", dice.pick(QUEUES), 3, 3, 9, 0))
    return (*steps, s.Finalize(_OLDEST, dice.pick(ACTIONS))) if dice.pick(BOTH) else steps


def _claim_and_finalize(dice: Dice) -> tuple[s.Step, ...]:
    settings = s.Change("q", None, sequenced=dice.pick(BOTH), every=None, ledger=True)
    claim = s.Claim("w1", dice.pick(("q", None)), 10, dice.pick((1, 3)), 3, None, park_behind_leased=True)
    work = (claim, s.Finalize(dice.pick((_ALL, *PLACES)), dice.pick(ACTIONS)))
    return (settings, *work, j.ReadLedger(_ALL)) if dice.pick(BOTH) else work


def _broken_and_probed(dice: Dice) -> tuple[s.Step, ...]:
    failed = s.Break("q", "failed")
    return failed, failed, s.Pass(4), s.Break("q", "probe"), s.Break("q", dice.pick(("close", "reopen")))


def _number_after_number(dice: Dice) -> tuple[s.Step, ...]:
    first = dice.pick((1, 2))
    return s.AcceptNumber("k", first, allow_gap=True), s.AcceptNumber("k", first + 1, allow_gap=False)


def _older_token(dice: Dice) -> tuple[s.Step, ...]:
    return s.Admit("f", 2), s.Admit("f", dice.pick((1, 2)))


_COLLIDING: tuple[Callable[[Dice], s.Step], ...] = (
    *[lambda dice: s.Finalize(_ALL, dice.pick(ACTIONS))] * 3,
    lambda _: s.Retry(_ALL),
    lambda _: s.Skip(_ALL),
    lambda dice: s.Enqueue(dice.pick(KEYS), "q", 0, "auto", dice.pick(("x", None)), 0),
    lambda dice: s.Accept("m", dice.pick((None, 1, 2)), None),
    lambda dice: s.AcceptNumber("k", dice.pick((1, 2)), dice.pick(BOTH)),
    lambda dice: s.Admit("f", dice.pick((1, 2, 3))),
    lambda dice: s.Break("q", dice.pick(BREAKS)),
    _change,
)

_MOTIFS = (
    *(*[_take_over] * 4, *[_claim_and_finalize] * 4, _number_after_number, _older_token, _broken_and_probed),
)


def _pair(dice: Dice) -> Collision:
    return (), dice.pick(_COLLIDING)(dice), dice.pick(_COLLIDING)(dice)


def _same_dedupe(dice: Dice) -> Collision:
    settings = s.Change("q", None, sequenced=dice.pick((True, True, False)), every=None, ledger=False)
    first, second = (s.Enqueue((key,), "q", 0, "auto", "x", dice.pick((0, 0, 1))) for key in ("a", "b"))
    return (settings,), first, second


def _pair_of_jobs(dice: Dice) -> Collision:
    return (), dice.pick(jobs.COLLIDING)(dice), dice.pick(jobs.COLLIDING)(dice)


def _same_claims(dice: Dice) -> Collision:
    claim = s.Claim("w1", "q", 10, 3, 3, None, park_behind_leased=True)
    return (claim,), s.Finalize(_ALL, dice.pick(ACTIONS)), s.Finalize(_ALL, dice.pick(ACTIONS))


MESSAGES = _Kind(_enqueue, _WEIGHTED, _MOTIFS, (_pair, _pair, _same_claims, _same_dedupe))
JOBS = _Kind(jobs.enqueue_job, jobs.WEIGHTED, jobs.MOTIFS, (_pair_of_jobs, jobs.same_claims))


def _steps(dice: Dice, kind: _Kind) -> tuple[s.Step, ...]:
    if dice.pick(range(4)) == 0:
        return dice.pick(kind.motifs)(dice)
    return (dice.pick(kind.steps)(dice),)


def _steps_of_two(dice: Dice, kind: _Kind) -> list[tuple[int, s.Step]]:
    session = dice.pick((0, 1))
    match dice.pick(range(8)):
        case 6 | 7:
            return [(session, dice.pick(_TRANSACTIONS)(dice))]
        case 5:
            # One of them waits for the other, or finds that it does not have to.
            before, first, second = dice.pick(kind.collisions)(dice)
            ends = s.End(commits=dice.pick((True, True, False)))
            other = 1 - session
            steps = [(session, step) for step in before]
            return [*steps, (other, s.Begin()), (other, first), (session, second), (other, ends)]
    return [(session, step) for step in _steps(dice, kind)]


HISTORIES: SearchStrategy[s.History] = st.binary(min_size=1 + STEPS * _BYTES, max_size=1 + STEPS * _BYTES).map(
    history_of
)
