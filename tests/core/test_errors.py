"""The failures that a publisher raises refuse a delay that could not be kept, where they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Retryable


@pytest.mark.parametrize("delay", [30, 1.5, float("nan"), "30s", True])
def test_a_delay_is_a_timedelta(delay: Any) -> None:
    with pytest.raises(TypeError, match="timedelta"):
        Defer(delay)
    with pytest.raises(TypeError, match="timedelta"):
        Retryable("busy", delay=delay)


def test_no_delay_and_any_timedelta_are_accepted() -> None:
    with pytest.raises(TypeError, match="timedelta"):
        Defer(None)  # type: ignore[arg-type]  # a caller without a type checker
    assert Retryable("busy").delay is None
    assert Retryable("busy", delay=timedelta(seconds=3)).delay == timedelta(seconds=3)
    assert Defer(timedelta(seconds=-1)).delay == timedelta(seconds=-1)
    assert str(Defer(timedelta(hours=1))) == "deferred for 1:00:00"
