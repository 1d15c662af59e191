"""What settings a queue may have, each by itself and together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fencepost.core.queue import CHANGEABLE, QueueSettings, checked_changes, checked_name, with_changes
from fencepost.errors import ConfigError

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (7, "must be text, not int"),
        ("", "at least one"),
        ("a b", "may hold only"),
        ("a\0", "may hold only"),
        ("\ud800", "may hold only"),
        ("q" * 101, "101 bytes, more than the limit of 100"),
    ],
)
def test_a_name_that_no_message_can_have_is_refused(name: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked_name(name)


def test_a_name_is_given_back_as_plain_text() -> None:
    class Text(str):
        __slots__ = ()

    assert type(checked_name(Text("mail.eu:1_a-b"))) is str
    assert checked_name("q" * 100) == "q" * 100


@pytest.mark.parametrize(
    ("setting", "low", "high", "outside"),
    [
        ("weight", 1, 1_000, [0, 1_001, True, 1.0, "1"]),
        ("concurrency", 1, 10_000, [0, 10_001]),
        ("lease", SECOND / 10, timedelta(days=1), [SECOND / 11, timedelta(days=1) + SECOND, 60]),
        ("publish_timeout", SECOND / 1_000_000, timedelta(days=1), [timedelta(0), timedelta(days=2)]),
        ("max_attempts", 1, 1_000_000, [0, 1_000_001]),
        ("backoff_base", SECOND / 1_000_000, timedelta(days=365), [timedelta(0), timedelta(days=366)]),
        ("backoff_cap", SECOND / 1_000_000, timedelta(days=365), [timedelta(0), timedelta(days=366)]),
        ("sequenced", False, True, [1, "yes"]),
        ("ledger", False, True, [0]),
        ("rate", 0.001, 1_000_000, [0, 1_000_001, True, float("nan"), "1"]),
        ("breaker_failures", 0, 1_000_000, [-1, 1_000_001]),
        ("breaker_cap", SECOND / 1_000_000, timedelta(days=1), [timedelta(0), timedelta(days=2)]),
    ],
)
def test_each_setting_has_its_bounds(setting: str, low: Any, high: Any, outside: list[Any]) -> None:
    assert checked_changes({setting: low}) == {setting: low}
    assert checked_changes({setting: high}) == {setting: high}
    for value in outside:
        with pytest.raises(ConfigError, match=f"^{setting}: must be"):
            checked_changes({setting: value})


def test_every_setting_that_can_be_changed_goes_back_to_the_workers_own() -> None:
    changed = with_changes(QueueSettings(queue="q", weight=7, lease=20 * SECOND), dict.fromkeys(CHANGEABLE))
    assert changed == QueueSettings(queue="q")


def test_no_change_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^say what to change: weight, "):
        checked_changes({})
    with pytest.raises(ConfigError, match=r"^queues have no setting 'wait': there are weight, "):
        checked_changes({"wait": 1, "weight": 2})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lease": SECOND, "publish_timeout": 2 * SECOND}, "publish_timeout"),
        ({"backoff_base": 2 * SECOND, "backoff_cap": SECOND}, "^backoff_base: 2 s is above backoff_cap, 1 s$"),
        ({"weight": 0, "rate": 0}, "^weight: .*; rate: "),
    ],
)
def test_what_cannot_work_together_is_refused_with_every_problem(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked_changes(changes)


def test_a_backoff_may_begin_at_its_cap() -> None:
    same = {"backoff_base": SECOND, "backoff_cap": SECOND}
    assert checked_changes(same) == same


def test_one_that_does_not_fit_the_usual_settings_is_warned_of() -> None:
    short = QueueSettings(queue="q", lease=5 * SECOND)
    ((setting, text),) = short.warnings()
    assert setting == "lease"
    assert text.endswith(
        "set publish_timeout as well: a worker with the usual publish_timeout does not serve this queue"
    )
    ((setting, text),) = QueueSettings(queue="q", publish_timeout=120 * SECOND).warnings()
    assert setting == "publish_timeout"
    assert "set lease as well" in text


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(queue="q"),
        QueueSettings(queue="q", lease=20 * SECOND, publish_timeout=5 * SECOND),
        QueueSettings(queue="q", lease=60 * SECOND),
        QueueSettings(queue="q", lease=SECOND / 100),  # a problem, which says enough
    ],
)
def test_and_nothing_else_is(settings: QueueSettings) -> None:
    assert settings.warnings() == []
