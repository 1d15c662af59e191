"""What is let in, what a token belongs to, and what is refused before any database work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import (
    Admission,
    ConfigError,
    Fence,
    FencepostError,
    InvalidMessage,
    StaleToken,
    job_resource,
    message_resource,
)
from fencepost.core.fence import Entrance, entrance
from fencepost.core.number import MAX_NUMBER


def test_only_what_is_not_older_is_let_in() -> None:
    assert [bool(Admission(token, newest=5)) for token in (4, 5, 6)] == [False, True, True]


def test_a_resource_is_named_after_what_its_tokens_are_counted_for() -> None:
    one = UUID(int=0xA1)
    assert message_resource(one) == message_resource(str(one)) == "message:00000000-0000-0000-0000-0000000000a1"
    assert job_resource(one) == job_resource(str(one)) == "job:00000000-0000-0000-0000-0000000000a1"
    assert message_resource("A ") != message_resource("a ") != message_resource("a")


@pytest.mark.parametrize("make", [message_resource, job_resource])
@pytest.mark.parametrize("bad", ["", "a\0", "\ud800", "x" * 513, 7, None])
def test_what_cannot_be_an_id_names_nothing(make: Any, bad: Any) -> None:
    with pytest.raises(InvalidMessage, match="_id"):
        make(bad)


def test_what_comes_to_a_fence_is_kept_as_it_is() -> None:
    assert entrance("ledger", "x" * 2048, MAX_NUMBER) == Entrance("ledger", "x" * 2048, MAX_NUMBER)
    assert entrance("ledger", " ", 0) == Entrance("ledger", " ", 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", 1), "resource must not be empty"),
        ((UUID(int=1), 1), "resource must be text, not UUID"),
        (("a\0b", 1), "resource holds a NUL character"),
        (("\ud800", 1), "resource holds a lone surrogate"),
        (("é" * 1025, 1), "resource has 2050 bytes, more than the limit of 2048"),
        (("r", -1), "token must be a whole number from 0"),
        (("r", True), "token must be a whole number"),
        (("r", "1"), "token must be a whole number"),
        (("r", None), "token must be a whole number"),
        (("r", 1.0), "token must be a whole number"),
        (("r", MAX_NUMBER + 1), "token must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[Any, Any], said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        entrance("ledger", *arguments)


@pytest.mark.parametrize("receiver", ["", "a\0", "x" * 101, 5])
def test_a_receiver_has_a_name(receiver: Any) -> None:
    with pytest.raises(ConfigError, match="receiver"):
        Fence(receiver)


def test_a_horizon_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="horizon must be above 0"):
        Fence("ledger", horizon=timedelta(0))


def test_a_refusal_says_which_token_stands_in_the_way() -> None:
    refused = StaleToken("ledger", "job:1", token=4, newest=5)
    assert isinstance(refused, FencepostError)
    assert str(refused).startswith("receiver 'ledger' has seen token 5 of 'job:1' and refuses 4")
    assert (refused.receiver, refused.resource, refused.token, refused.newest) == ("ledger", "job:1", 4, 5)
