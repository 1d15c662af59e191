"""How an attempt ends by what was decided, and why there was another one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.ledger import (
    CAUSE_TEXTS,
    MAY_HAVE_ARRIVED,
    Attempt,
    AttemptResult,
    Cause,
    Kind,
    result_of,
    with_causes,
)
from fencepost.core.outcome import (
    Cancelled,
    Deferred,
    Delivered,
    Disabled,
    Failed,
    Foreign,
    Refused,
    Result,
    RetryPolicy,
    Routed,
    TimedOut,
    Unclear,
    Unstarted,
    Verified,
    decide,
)
from fencepost.core.states import Recovery

R = AttemptResult
START = datetime(2026, 1, 1, tzinfo=UTC)


def ended(result: Result, attempt: int = 1, recovery: Recovery = Recovery.VERIFY) -> tuple[R, str | None]:
    policy = RetryPolicy(max_attempts=3)
    return result_of(decide(result, policy, attempt=attempt, recovery=recovery, age=timedelta(0), fraction=0.5))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Delivered(), (R.DELIVERED, None)),
        (Verified(), (R.VERIFIED, None)),
        (Routed(("a", "b")), (R.EXPANDED, None)),
        (Unstarted(), (R.RELEASED, None)),
        (Failed("x"), (R.FAILED, "x")),
        (Failed("x", unverified=True), (R.FAILED, "x")),
        (TimedOut("x"), (R.UNKNOWN, "x")),
        (Cancelled("x"), (R.UNKNOWN, "x")),
        (Deferred(timedelta(0), "x"), (R.DEFERRED, "x")),
        (Disabled("x"), (R.DEFERRED, "x")),
        (Foreign("x"), (R.DEFERRED, "x")),
        (Refused("x"), (R.REFUSED, "x")),
        (Refused("x", unroutable=True), (R.REFUSED, "x")),
        (Unclear("x"), (R.UNCLEAR, "x")),
    ],
)
def test_how_an_attempt_ends(result: Result, expected: tuple[R, str | None]) -> None:
    assert ended(result) == expected


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize(
    ("result", "expected"), [(Failed("x"), R.FAILED), (TimedOut("x"), R.UNKNOWN), (Cancelled("x"), R.UNKNOWN)]
)
def test_at_the_limit_it_ends_the_same_way(result: Result, expected: R, recovery: Recovery) -> None:
    assert ended(result, 3, recovery)[0] is expected


def test_at_the_limit_what_only_asked_has_published_nothing() -> None:
    assert ended(Failed("x", unverified=True), 3)[0] is R.UNCLEAR


def attempts(*results: R | None, lost: int | None = None) -> list[Attempt]:
    return [
        Attempt(
            kind=Kind.MESSAGE,
            row_id=1,
            token=str(n + 1),
            queue="q",
            attempt=n + 1,
            worker="w",
            started_at=START + n * timedelta(minutes=1),
            ended_at=None,
            result=result,
            lease_lost=n == lost,
            error=None,
        )
        for n, result in enumerate(results)
    ]


@pytest.mark.parametrize(
    ("earlier", "cause", "is_repeat"),
    [
        ([R.LOST], Cause.WORKER_LOST, True),
        ([R.UNKNOWN], Cause.NO_ANSWER, True),
        ([R.OUT_OF_TURN], Cause.OUT_OF_TURN, True),
        ([R.FAILED], Cause.FAILED, False),
        ([R.DEFERRED], Cause.DEFERRED, False),
        ([R.RELEASED], Cause.RELEASED, False),
        ([R.DELIVERED], Cause.BY_HAND, True),
        ([None], Cause.WORKER_LOST, True),
        # The last one that may have arrived counts, whatever came to nothing since.
        ([R.LOST, R.RELEASED, R.DEFERRED, R.FAILED], Cause.WORKER_LOST, True),
        ([R.UNKNOWN, R.LOST, R.RELEASED], Cause.WORKER_LOST, True),
        ([R.LOST, R.UNKNOWN], Cause.NO_ANSWER, True),
        ([R.FAILED, R.RELEASED], Cause.FAILED, False),
    ],
)
def test_why_there_was_another_one(earlier: list[R | None], cause: Cause, is_repeat: bool) -> None:
    last = with_causes(attempts(*earlier, R.DELIVERED), [])[-1]
    assert (last.cause, last.is_repeat) == (cause, is_repeat)


@pytest.mark.parametrize("result", sorted(MAY_HAVE_ARRIVED))
def test_a_lost_lease_comes_before_how_it_ended(result: R) -> None:
    assert with_causes(attempts(result, R.DELIVERED, lost=0), [])[-1].cause is Cause.LEASE_LOST


def test_an_operators_retry_in_between_comes_before_everything() -> None:
    for minutes, cause in ((0.5, Cause.OPERATOR_RETRY), (-1, Cause.LEASE_LOST), (2, Cause.LEASE_LOST)):
        at = START + timedelta(minutes=minutes)
        assert with_causes(attempts(R.UNKNOWN, R.DELIVERED, lost=0), [at])[-1].cause is cause


@given(results=st.lists(st.sampled_from([*AttemptResult, None]), max_size=6), data=st.data())
def test_every_attempt_but_the_first_has_a_cause_that_people_can_read(
    results: list[R | None], data: st.DataObject
) -> None:
    lost = data.draw(st.integers(0, 6))
    told = with_causes(attempts(*results, lost=lost), [])
    assert [each.cause is None for each in told] == [n == 0 for n in range(len(results))]
    assert all(each.cause in CAUSE_TEXTS for each in told[1:])
