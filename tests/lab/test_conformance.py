"""Histories on the model, the fake store and PostgreSQL agree; and every planted fault makes them disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from lab.conformance import job_steps as j
from lab.conformance import reach
from lab.conformance import steps as s
from lab.conformance.__main__ import stores_on, told
from lab.conformance.campaign import campaign, small_figures
from lab.conformance.fake import FakeStore
from lab.conformance.faults import FAKE_FAULTS, TEXT_FAULTS, TextFault, planted, with_fault
from lab.conformance.postgres import PostgresStore
from lab.conformance.run import Run
from lab.conformance.store import Store

from fencepost.embedded import PostgresServer
from fencepost.store import jobs
from fencepost.store.catalog import Catalog

SEED = 20261130

Stores = list[FakeStore | PostgresStore]

HISTORIES_FOR_ALL = 400
"""So many reach every statement that is not left out."""

STEPS = {
    kind.__name__
    for module in (s, j)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, s.Step) and kind not in (s.Step, j.JobStep)
}


@pytest.fixture(scope="module")
def everywhere(postgres18: PostgresServer, postgres15: PostgresServer) -> Iterator[Stores]:
    """The fake store, and a database on each major version."""
    with stores_on([("PostgreSQL 18", postgres18), ("PostgreSQL 15", postgres15)]) as stores:
        yield stores


@pytest.mark.parametrize("part", range(10))
def test_two_thousand_histories_agree(everywhere: Stores, part: int) -> None:
    # Each major version has every second part; all on both of them, and more, by `make conformance`.
    fake, newer, older = everywhere
    stores = [fake, older if part % 2 else newer]
    report = campaign(stores, histories=200, seed_number=SEED + part)
    assert report.disagreement is None, told(report)
    assert report.histories == 200
    # Nothing that can happen was left out, nor what only two sessions can do to each other.
    assert {*STEPS, "(waited)"} <= report.counts.keys(), told(report)


def test_every_statement_and_operation_is_exercised_or_named_with_a_reason() -> None:
    with closing(FakeStore()) as fake, reach.watched() as ran:
        report = campaign([fake], histories=HISTORIES_FOR_ALL, seed_number=SEED)
        operations = ran()
    assert report.disagreement is None, told(report)
    for everything, exercised, left_out in (
        (reach.statements(), fake.sent.keys(), reach.LEFT_OUT),
        (reach.operations().keys(), operations, reach.OPERATIONS_LEFT_OUT),
    ):
        unexplained = {name for name in everything if reach.reason(name, left_out) is None}
        assert unexplained - exercised == set(), "neither exercised nor named"
        assert exercised - unexplained == set(), "exercised, and named as left out"
        beginnings = [each for each in left_out if not any(name.startswith(each) for name in everything)]
        assert beginnings == [], "there is nothing of that name (any more)"


def test_what_is_new_and_not_exercised_is_seen() -> None:
    assert "job_claim" in reach.statements()
    assert "jobs.claim" in reach.operations()
    assert reach.reason("job_claim", reach.LEFT_OUT) is None
    with reach.watched() as ran:
        next(jobs.purge(Catalog(), older_than=timedelta(0), limit=1))
    assert ran() == {"jobs.purge"}


def test_the_same_seed_makes_the_same_histories() -> None:
    with closing(FakeStore()) as fake:
        first, second, other = (
            campaign([fake], histories=40, seed_number=seed).counts for seed in (SEED, SEED, SEED + 1)
        )
    assert first == second != other


# The others need more histories: `python -m lab.conformance --faults` plants all of them.
@pytest.mark.parametrize("fault", [each for each in TEXT_FAULTS if each.is_found_soon], ids=str)
def test_a_fault_in_a_statement_is_found(everywhere: Stores, fault: TextFault) -> None:
    with planted(fault):
        report = campaign(everywhere[:2], histories=600, seed_number=SEED, shrink=False, concerns=fault.statement)
    assert report.disagreement is not None, f"{fault} in {report.histories} histories"


@pytest.mark.parametrize("name", FAKE_FAULTS)
def test_a_fault_in_the_fake_store_is_found_by_the_model(name: str) -> None:
    with closing(FakeStore(with_fault(name))) as fake:
        stores: list[Store] = [fake]
        report = campaign(stores, histories=4000, seed_number=SEED, shrink=False)
    assert report.disagreement is not None, f"{name} in {report.histories} histories"


def test_attempts_are_told_as_they_began_whoever_commits_first(everywhere: Stores) -> None:
    # Three turns are taken by two sessions of which the first commits last: a ledger is numbered by a sequence.
    terms = j.Terms(worker="w1", lease=1, width=1, limit=1, ledger=True)
    job = j.EnqueueJob(
        task="t", lane=None, queue="q", unique=None, args=0, delay=0, recovery="auto", max_attempts=3
    )
    history = (
        (1, s.Begin()),
        (0, job),
        (0, job),
        (1, j.ClaimJobs(terms=terms, queue="q", batch=10)),
        (0, replace(job, task="u", lane="a")),
        (0, j.ClaimLanes(terms=terms, queue="q", batch=1)),
    )
    Run(everywhere, Counter()).history(history)


def test_who_waits_for_a_unique_key_has_drawn_an_id_before_others(everywhere: Stores) -> None:
    terms = j.Terms(worker="w2", lease=3, width=1, limit=2, ledger=True)
    job = j.EnqueueJob(
        task="t", lane=None, queue="q", unique="x", args=0, delay=0, recovery="auto", max_attempts=2
    )
    history = (
        (1, s.Begin()),
        (0, job),
        (1, j.ClaimJobs(terms=terms, queue="q", batch=10)),
        (0, job),
        (1, j.EndJobs(rows=(0,), cancels=True)),
        (1, replace(job, task="u", unique="y")),
        (1, s.End(commits=True)),
        (0, j.ClaimJobs(terms=terms, queue="q", batch=1)),
    )
    counts: Counter[str] = Counter()
    Run(everywhere, counts).history(history)
    assert counts["(waited)"] == 1


def test_a_claim_may_come_across_nothing_but_what_it_buries_and_parks(everywhere: Stores) -> None:
    # It looks again so often, and no more: whoever claims does so once more, as what it counts tells.
    common = s.Enqueue(keys=(None, "a", "b", "a"), queue="q", delay=0, recovery="verify", dedupe=None, payload=0)
    claim = s.Claim("w2", None, 5, 1, 2, None, park_behind_leased=False)
    steps = (
        common,
        replace(common, keys=("b", "b", "b")),
        claim,
        replace(common, keys=(None,), delay=5),
        s.Release(claims=tuple(range(10))),
        s.Pass(minutes=10),
        replace(claim, batch=1, limit=1),
    )
    Run(everywhere, Counter()).history(tuple((0, step) for step in steps))


def test_keys_are_locked_in_the_order_of_their_hashes(everywhere: Stores) -> None:
    # The first waits for b before it has a, so nobody closes a circle who wants a meanwhile.
    enqueue = s.Enqueue(keys=("b",), queue="q", delay=0, recovery="auto", dedupe=None, payload=0)
    history = (
        (1, s.Begin()),
        (1, enqueue),
        (0, replace(enqueue, keys=("a", "b"))),
        (1, replace(enqueue, keys=("a",))),
    )
    counts: Counter[str] = Counter()
    Run(everywhere, counts).history(history)
    assert (counts["(waited)"], counts["(DeadlockDetected)"]) == (1, 0)


def test_who_waited_in_vain_for_a_row_has_it_locked_all_the_same(everywhere: Stores) -> None:
    claim = s.Claim("w1", "q", 10, 3, 3, None, park_behind_leased=True)
    history = (
        (1, s.Begin()),
        (0, s.Enqueue(keys=(None,), queue="q", delay=0, recovery="auto", dedupe=None, payload=0)),
        (0, claim),
        (0, s.Begin()),
        (0, s.Finalize(claims=(0,), actions=("release",))),
        (1, s.Finalize(claims=(0,), actions=("defer",))),
        (0, s.End(commits=True)),
        (0, claim),
    )
    counts: Counter[str] = Counter()
    Run(everywhere, counts).history(history)
    assert counts["(waited)"] == 1


@pytest.mark.parametrize("commits", [True, False])
def test_who_expands_what_another_session_is_just_expanding_puts_it_off_behind_it(
    everywhere: Stores, commits: bool
) -> None:
    enqueue = s.Enqueue(keys=("a", "a"), queue="q", delay=0, recovery="verify", dedupe=None, payload=0)
    expand = s.Finalize(claims=(0, 1), actions=("expand",))
    history = (
        (1, s.Begin()),
        (0, enqueue),
        (0, s.Claim("w1", "q", 10, 3, 3, None, park_behind_leased=True)),
        (1, expand),
        (0, expand),
        (1, s.End(commits=commits)),
    )
    counts: Counter[str] = Counter()
    with small_figures():
        Run(everywhere, counts).history(history)
    assert counts["(waited)"] == 1


def test_attempts_of_one_claim_are_told_queue_by_queue(everywhere: Stores) -> None:
    enqueue = s.Enqueue(keys=("b",), queue="r", delay=0, recovery="auto", dedupe=None, payload=0)
    switch = s.Change(queue="r", max_attempts=None, sequenced=False, every=None, ledger=True)
    claim = s.Claim("w1", None, 10, 3, 3, None, park_behind_leased=True)
    steps = (enqueue, replace(enqueue, queue="q"), switch, replace(switch, queue="q"), claim)
    Run(everywhere, Counter()).history(tuple((0, step) for step in steps))


def test_a_history_that_disagrees_is_made_short() -> None:
    with closing(FakeStore(with_fault("a repeat is taken in"))) as fake:
        report = campaign([fake], histories=300, seed_number=SEED)
    kinds = [type(step) for _, step in report.history]
    assert kinds.count(s.Accept) == 2
    assert len(kinds) <= 6
    assert "THEY DISAGREE" in told(report)
