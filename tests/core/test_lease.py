"""Windows of trust, the one decision about "lost", and timings that cannot work."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.lease import TrustWindow, lost, timing_problems

SECOND = timedelta(seconds=1)


def test_a_window_counts_from_before_the_claim_was_sent() -> None:
    window = TrustWindow(sent_at=100.0, lease=60.0)
    assert window.remaining(100.0) == 60.0
    assert window.remaining(159.5) == 0.5
    assert not window.is_over(159.9)
    assert window.is_over(160.0)
    assert window.remaining(1_000.0) == 0.0


@given(st.sets(st.integers()), st.sets(st.integers()))
def test_lost_is_what_was_asked_for_and_not_confirmed(asked: set[int], kept: set[int]) -> None:
    assert lost(asked, kept) == asked - kept


def test_timings_that_work_have_no_problems() -> None:
    assert timing_problems(lease=60 * SECOND, heartbeat=20 * SECOND, publish_timeout=59 * SECOND) == []


def test_every_problem_is_named_with_its_setting_and_a_remedy() -> None:
    problems = dict(timing_problems(lease=60 * SECOND, heartbeat=21 * SECOND, publish_timeout=60 * SECOND))
    assert set(problems) == {"heartbeat", "publish_timeout"}
    assert "raise lease" in problems["heartbeat"]
    assert "raise lease" in problems["publish_timeout"]
