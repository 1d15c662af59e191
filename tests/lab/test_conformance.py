"""Histories on the model, the fake store and PostgreSQL agree; and every planted fault makes them disagree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from lab.conformance import steps as s
from lab.conformance.__main__ import stores_on, told
from lab.conformance.campaign import campaign
from lab.conformance.fake import FakeStore
from lab.conformance.faults import FAKE_FAULTS, TEXT_FAULTS, TextFault, planted, with_fault
from lab.conformance.postgres import PostgresStore
from lab.conformance.store import Store

from fencepost.embedded import PostgresServer

SEED = 20261130

Stores = list[FakeStore | PostgresStore]


@pytest.fixture(scope="module")
def everywhere(postgres18: PostgresServer, postgres15: PostgresServer) -> Iterator[Stores]:
    """The fake store, and a database on each major version."""
    with stores_on([("PostgreSQL 18", postgres18), ("PostgreSQL 15", postgres15)]) as stores:
        yield stores


@pytest.mark.parametrize("part", range(10))
def test_two_thousand_histories_agree(everywhere: Stores, part: int) -> None:
    # The last of ten parts runs on the older major version too; more, and all of them, by `make conformance`.
    report = campaign(everywhere if part == 9 else everywhere[:2], histories=200, seed_number=SEED + part)
    assert report.disagreement is None, told(report)
    assert report.histories == 200
    names = {name for name in vars(s) if isinstance(vars(s)[name], type) and issubclass(vars(s)[name], s.Step)}
    # Nothing that can happen was left out, nor what only two sessions can do to each other.
    assert {*names - {"Step"}, "(waited)"} <= report.counts.keys(), told(report)


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
        report = campaign(stores, histories=1500, seed_number=SEED, shrink=False)
    assert report.disagreement is not None, f"{name} in {report.histories} histories"


def test_a_history_that_disagrees_is_made_short() -> None:
    with closing(FakeStore(with_fault("a repeat is taken in"))) as fake:
        report = campaign([fake], histories=300, seed_number=SEED)
    kinds = [type(step) for _, step in report.history]
    assert kinds.count(s.Accept) == 2
    assert len(kinds) <= 6
    assert "THEY DISAGREE" in told(report)
