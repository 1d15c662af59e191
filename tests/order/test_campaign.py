"""A short campaign of random faults against order (`make order` runs a long one), and the checker under test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from fencepost.embedded import PostgresServer
from tests.order.campaign import Campaign
from tests.order.record import TABLES, check
from tests.postgres import fresh_database

SECONDS = float(os.environ.get("FENCEPOST_ORDER_SECONDS", "12"))
SEED = int(os.environ.get("FENCEPOST_ORDER_SEED", "20261129"))


@pytest.fixture
def url(postgres18: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres18) as found:
        with psycopg.connect(found) as conn:
            Outbox().migrate(conn)
        yield found


@pytest.mark.timeout(300)
def test_order_survives_crashes_freezes_retries_defers_rollbacks_and_operators(url: str) -> None:
    """I4, I5: four workers and four producers in processes of their own, at random."""
    campaign = Campaign(url, SEED)
    verdict = campaign.run(SECONDS)
    assert verdict.problems == [], f"seed {SEED}"
    assert verdict.messages > 300
    assert verdict.repeats > 0, "nothing ever went wrong: the campaign proves nothing"


ACCEPTED = "INSERT INTO accepted (id, key, token, stale) VALUES"
FINALIZED = "INSERT INTO finalized (id, key, outcome) VALUES"
PLANTED = {
    "first accepted before": f"{ACCEPTED} (2, 'k', 1, false), (1, 'k', 1, false)",
    "finalized before": f"{FINALIZED} (2, 'k', 'delivered'), (1, 'k', 'delivered')",
    "finalized twice": f"{FINALIZED} (1, 'k', 'delivered'), (1, 'k', 'delivered')",
    "left behind": "INSERT INTO outbox (event_type, payload) VALUES ('e', '1')",
    "committed and not there": "INSERT INTO committed VALUES (99)",
    "there and not committed": "INSERT INTO outbox (event_type, payload) VALUES ('e', '1')",
    "delivered and never accepted": f"{FINALIZED} (1, 'k', 'delivered')",
}


@pytest.fixture
def history(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(TABLES.encode())
        yield conn


@pytest.mark.parametrize("text", PLANTED)
def test_the_checker_sees_a_planted_violation(history: psycopg.Connection[Any], text: str) -> None:
    assert check(history).problems == []
    history.execute(PLANTED[text].encode())
    assert [problem for problem in check(history).problems if problem.startswith(text)]


def test_a_late_duplicate_of_a_worker_that_had_lost_its_lease_is_no_violation(
    history: psycopg.Connection[Any],
) -> None:
    history.execute("INSERT INTO accepted (id, key, token, stale) VALUES (2, 'k', 1, false), (1, 'k', 1, true)")
    assert check(history).problems == []
