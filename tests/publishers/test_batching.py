"""What destinations share for whole batches: outcomes, rounds, one deadline, and one message as a batch of one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from fencepost.core.records import Message
from fencepost.errors import Permanent, Retryable
from fencepost.publishers.base import LEASE_MARGIN, Delivery, own_copy
from fencepost.publishers.batching import BEHIND, TOO_LATE, Batch, BatchPublisher, in_rounds, rounds
from fencepost.testing import sample_delivery, sample_message

TIMEOUT = 8.0


def batch_of(*keys: str | None, leases: Sequence[float] = ()) -> Batch:
    deliveries = [sample_delivery(lease=lease) for lease in leases or [60.0] * len(keys)]
    return Batch([sample_message(ordering_key=key) for key in keys], deliveries, TIMEOUT)


class TestAKeyStops:
    def test_behind_a_failure_and_not_before_it(self) -> None:
        batch = batch_of("k", "k", "k", "other", None)
        bad = Permanent("too large")
        batch.failed(1, bad)
        assert [batch.may_go(place) for place in range(5)] == [True, False, False, True, True]
        assert batch.outcomes()[1] is bad
        assert str(batch.outcomes()[2]) == BEHIND
        batch.failed(0, Permanent("too"))
        assert batch.outcomes()[1] is bad, "its own failure says more"

    def test_and_a_failure_without_a_key_stops_nothing(self) -> None:
        batch = batch_of(None, None)
        batch.failed(0, Permanent("too large"))
        assert batch.may_go(1)


class TestTheDeadline:
    def test_is_the_timeout_where_the_leases_are_long(self) -> None:
        started = time.monotonic()
        assert started + TIMEOUT <= batch_of(None, None).deadline <= time.monotonic() + TIMEOUT

    def test_is_before_the_first_lease_ends(self) -> None:
        deadline = batch_of(None, None, None, leases=[60, 3, 60]).deadline
        assert 0 <= time.monotonic() + 3 - LEASE_MARGIN - deadline < 1

    @pytest.mark.parametrize("lease", [-1, 0, LEASE_MARGIN / 2])
    def test_a_message_whose_lease_is_about_to_end_fails_alone(self, lease: float) -> None:
        batch = batch_of(None, None, "k", "k", leases=[60, lease, 60, 60])
        assert batch.deadline > time.monotonic() + TIMEOUT - 1, "the others have all the time they had"
        late = batch.outcomes()[1]
        assert isinstance(late, Retryable)
        assert not late.unavailable
        assert str(late).startswith("not sent: ")
        assert [batch.may_go(place) for place in range(4)] == [True, False, True, True]

    def test_and_stops_its_key(self) -> None:
        batch = batch_of("k", "k", "k", leases=[60, 0, 60])
        assert [batch.may_go(place) for place in range(3)] == [True, False, False]

    def test_where_all_leases_end_nothing_goes(self) -> None:
        batch = batch_of(None, "k", "k", leases=[0, 0, 0])
        assert not any(batch.may_go(place) for place in range(3))
        assert len({id(outcome) for outcome in batch.outcomes()}) == 3, "each its own"


def test_one_that_cannot_be_made_fails_alone_and_stops_its_key() -> None:
    batch = batch_of("k", "k", "k", None)

    def make(place: int) -> str:
        if place == 1:
            raise Permanent("a bad header")
        return str(place)

    assert batch.made(range(4), make) == {0: "0", 3: "3"}
    assert [str(outcome or "") for outcome in batch.outcomes()] == ["", "a bad header", BEHIND, ""]


def test_what_is_no_failure_of_a_publish_is_not_taken_for_one() -> None:
    def make(place: int) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        batch_of(None).made([0], make)


def test_rounds_have_a_message_of_a_key_at_most() -> None:
    keys = ["a", None, "a", "b", None, "a", "b"]
    assert rounds([sample_message(ordering_key=key) for key in keys]) == [[0, 1, 3, 4], [2, 6], [5]]
    assert rounds([]) == []


@dataclass
class Parcel:
    place: int
    outcome: Exception | None = None


class TestInRounds:
    async def test_what_failed_stops_its_key_before_the_next_round_is_sent(self) -> None:
        sent: list[list[int]] = []

        async def send(parcels: Sequence[Parcel], _: float) -> None:
            sent.append([parcel.place for parcel in parcels])
            for parcel in parcels:
                if parcel.place == 1:
                    parcel.outcome = Retryable("refused")

        outcomes = await in_rounds(batch_of("a", "b", "a", "b", None), Parcel, send)
        assert sent == [[0, 1, 4], [2]]
        assert [str(outcome or "") for outcome in outcomes] == ["", "refused", "", BEHIND, ""]

    async def test_all_get_the_deadline_and_after_it_nothing_is_sent(self) -> None:
        batch = batch_of("a", "a", None, leases=[60, LEASE_MARGIN + 0.05, 60])
        deadlines: list[float] = []

        async def send(_: Sequence[Parcel], deadline: float) -> None:
            deadlines.append(deadline)
            while time.monotonic() < deadline:
                pass  # the answers come in the last moment

        outcomes = await in_rounds(batch, Parcel, send)
        assert deadlines == [batch.deadline]
        assert [str(outcome or "") for outcome in outcomes] == ["", TOO_LATE, ""]

    async def test_without_lease_nothing_is_sent(self) -> None:
        async def send(_: Sequence[Parcel], __: float) -> None:
            raise AssertionError("sent")

        assert all(await in_rounds(batch_of("a", "a", None, leases=[0, 0, 0]), Parcel, send))
        assert await in_rounds(batch_of(), Parcel, send) == []


class Loft(BatchPublisher):
    """Takes the good, and refuses the bad."""

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        assert len(messages) == len(deliveries)
        return [Permanent("bad") if message.event_type == "bad" else None for message in messages]


async def test_one_message_is_a_batch_of_one_whose_outcome_is_raised() -> None:
    loft = Loft("pigeon://loft")
    await loft.publish(sample_message(), sample_delivery())
    with pytest.raises(Permanent, match="bad"):
        await loft.publish(sample_message("bad"), sample_delivery())


def test_a_copy_of_a_failure_says_all_that_it_said() -> None:
    failure = Retryable("busy", delay=timedelta(seconds=3), unavailable=True)
    copy = own_copy(failure)
    assert copy is not failure
    assert (str(copy), copy.delay, copy.unavailable) == ("busy", timedelta(seconds=3), True)
