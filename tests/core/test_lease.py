"""Windows of trust, the one decision about "lost", and timings that cannot work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fencepost.core.lease import TrustWindow, lost, timing_problems


def problems(lease: float, heartbeat: float, publish_timeout: float) -> list[str]:
    found = timing_problems(
        lease=timedelta(seconds=lease),
        heartbeat=timedelta(seconds=heartbeat),
        publish_timeout=timedelta(seconds=publish_timeout),
    )
    return [setting for setting, _ in found]


@pytest.mark.parametrize(
    ("lease", "heartbeat", "publish_timeout", "wrong"),
    [
        (60, 20, 10, []),
        (60, 20, 59.999999, []),
        (2, 2 / 3, 0.5, []),
        (0.3, 0.1, 0.1, []),
        (60, 20.000001, 10, ["heartbeat"]),
        (60, 60, 10, ["heartbeat"]),
        (60, 20, 60, ["publish_timeout"]),
        (60, 20, 3_600, ["publish_timeout"]),
        (2, 2, 2, ["heartbeat", "publish_timeout"]),
        (1, 10, 10, ["heartbeat", "publish_timeout"]),
    ],
)
def test_settings_that_cannot_work(
    lease: float, heartbeat: float, publish_timeout: float, wrong: list[str]
) -> None:
    assert problems(lease, heartbeat, publish_timeout) == wrong


def test_a_problem_names_the_figures_and_the_remedy() -> None:
    (_, slow), (_, late) = timing_problems(
        lease=timedelta(seconds=2), heartbeat=timedelta(seconds=1.5), publish_timeout=timedelta(seconds=30)
    )
    assert "1.5 s" in slow
    assert "2 s" in slow
    assert "lower heartbeat or raise lease" in slow
    assert "30 s" in late
    assert "lower publish_timeout or raise lease" in late


def test_the_window_of_trust_is_counted_from_before_the_claim_was_sent() -> None:
    window = TrustWindow(sent_at=100.0, lease=60.0)
    assert window.remaining(100.0) == 60.0
    assert window.remaining(159.0) == 1.0
    assert not window.is_over(159.999)
    assert window.is_over(160.0)
    assert window.remaining(1e9) == 0.0


def test_what_was_asked_for_and_not_confirmed_is_lost() -> None:
    assert lost([1, 2, 3], [2]) == {1, 3}
    assert lost([1, 1], {1, 9}) == frozenset()
    assert lost([], [1]) == frozenset()
