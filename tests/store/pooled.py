"""The store suite through a pooler: PgBouncer in transaction mode, two server connections for everybody.

Every test that takes a database of the suite's runs that way as well, on PostgreSQL 18. Those that need a session
of their own say so here, each with its reason, and run without the pooler only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import psycopg

from fencepost.embedded import PostgresServer
from tests.runtime.pgbouncer import pgbouncer

SESSION = "it sets a session's own settings, which a pooler gives to others"
SESSIONS = "it needs more server sessions at once than the pool has"
LISTEN = "LISTEN belongs to a session"
SCALE = "it asks what many rows cost, to which a pooler adds only its round trips"

DIRECT_ONLY: Mapping[str, str] = {
    "test_expand.py::test_a_producer_waits_for_an_expansion_of_its_key": SESSIONS,
    "test_inbox.py::test_fifty_at_once_make_one_effect": SESSIONS,
    "test_inbox.py::test_a_concurrent_repeat_waits_for_the_first": SESSIONS,
    "test_inbox.py::test_above_read_committed_the_wait_may_end_in_a_serialization_failure": SESSIONS,
    "test_inbox.py::test_numbers_that_come_at_once_and_twice_have_their_effects_in_order": SESSIONS,
    "test_inbox.py::test_two_first_messages_of_a_key_wait_for_each_other": SESSIONS,
    "test_inbox.py::test_a_purge_passes_by_what_others_hold": SESSIONS,
    "test_inbox_corners.py::test_two_in_the_opposite_order_are_a_deadlock_and_then_go_well": SESSIONS,
    "test_inbox_corners.py::test_two_first_messages_at_once_both_have_their_effects_in_order": SESSIONS,
    "test_inbox_corners.py::test_a_consumer_frozen_before_its_commit_is_thrown_out_by_its_own_time_out": SESSIONS,
    "test_inbox_purge.py::test_three_purgers_at_once_beside_traffic_one_killed_half_way": SESSIONS,
    "test_isolation.py::test_the_whole_life_of_a_message_in_an_odd_session": SESSION,
    "test_isolation.py::test_an_instant_means_the_same_whatever_the_session_believes": SESSION,
    "test_isolation.py::test_two_claims_at_once_under_a_snapshot_never_share_a_row": SESSION,
    "test_isolation.py::test_a_stale_finalize_under_a_snapshot_is_an_error_or_a_lost_lease_never_a_write": SESSION,
    "test_job_operators.py::test_a_retry_wakes_the_workers": LISTEN,
    "test_keys.py::test_it_stays_fast_with_many_followers_and_many_keys": SCALE,
    "test_many_queues.py::test_everything_in_five_thousand_queues_is_claimed_and_what_expired_as_well": SCALE,
    "test_migrations.py::test_ten_at_once_apply_once_and_all_succeed": SESSIONS,
    "test_migrations.py::test_whatever_the_session_is_set_to_the_tables_are_the_same": SESSION,
    "test_order_enqueue.py": SESSIONS,
    "test_order_numbers.py": SESSIONS,
    "test_order_traps.py": SESSIONS,
    "test_operators.py::test_a_retry_wakes_the_dispatchers_and_nothing_else_does": LISTEN,
    "test_purge.py::test_three_purgers_at_once_beside_traffic_one_killed_half_way": SESSIONS,
    "test_receiver_fence.py::test_of_forty_holders_at_once_none_writes_over_a_newer_one": SESSIONS,
    "test_receiver_fence.py::test_who_comes_second_waits_and_judges_by_what_then_stands": SESSIONS,
    "test_receiver_fence.py::test_under_an_older_snapshot_it_is_a_serialization_failure_never_a_write": SESSIONS,
    "test_receiver_fence.py::test_at_read_committed_a_holder_sees_what_the_one_before_it_wrote": SESSIONS,
    "test_receiver_fence.py::test_what_is_forgotten_meanwhile_is_seen_anew": SESSIONS,
    "test_receiver_fence.py::test_a_purge_passes_by_what_a_holder_is_at": SESSIONS,
    "test_receiver_fence.py::test_tokens_of_two_resources_cross_and_the_deadlock_is_told": SESSIONS,
    "test_receiver_fence.py::test_a_holder_frozen_in_its_transaction_is_thrown_out_by_its_own_time_out": SESSIONS,
    "test_queues.py::test_a_resume_wakes_the_workers": LISTEN,
}
"""Why a test, or all of a file, does not run through the pooler: by ``file`` or ``file::test``."""

LEAKED = (
    "SET search_path = public, pg_catalog",
    "SET TimeZone = 'Asia/Kathmandu'",
    "SET DateStyle = 'German'",
    "SET IntervalStyle = 'sql_standard'",
    "SET bytea_output = 'escape'",
)
"""What another client of the pool leaves behind in its sessions."""


def runs_pooled(file: str, test: str) -> bool:
    """Tell whether a test runs through the pooler too."""
    return file not in DIRECT_ONLY and f"{file}::{test}" not in DIRECT_ONLY


@contextmanager
def pooler(server: PostgresServer) -> Iterator[str]:
    """A pooler in front of a server; yields its address as ``host:port``."""
    with pgbouncer(server.url) as url:
        yield urlsplit(url).netloc.rpartition("@")[2]


def through(pooler: str, url: str) -> str:
    """Return the address of a database through the pooler."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@{pooler}").geturl()


def leak(url: str) -> None:
    """Leave settings behind in both of the pool's sessions."""
    with ExitStack() as stack:
        others = [stack.enter_context(psycopg.connect(url)) for _ in range(2)]
        for other in others:
            other.execute("; ".join(LEAKED))  # in a transaction each: so they have a session each
        for other in others:
            other.commit()
