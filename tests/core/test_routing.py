"""Which destinations an event goes to, and what is refused before anything is routed."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import ConfigError, Routing, Rule
from fencepost.core.routing import REMEMBERED, Match

ROUTING = Routing(
    [
        Rule("order.secret", to="vault"),
        Rule("order.*", to=["kafka", "hook"]),
        Rule("*", to=["archive"], queue="slow*"),
        Rule("*", to=["people"], aggregate_type="person"),
        Rule("*", to=["things"], aggregate_type="?*"),
    ]
)


@pytest.mark.parametrize(
    ("event_type", "queue", "aggregate_type", "expected"),
    [
        ("order.created", "default", None, ("kafka", "hook")),
        ("order.line.added", "default", "order", ("kafka", "hook")),
        ("order.secret", "default", None, ("vault",)),
        ("orders", "default", None, ()),
        ("x", "slow.mail", None, ("archive",)),
        ("x", "default", "person", ("people",)),
        ("x", "default", "table", ("things",)),
        ("x", "default", "", ()),
        # It stands in a destination already, whatever the rules say of its type.
        ("order.created", "hook", None, ()),
    ],
)
def test_the_first_rule_that_matches_in_everything_wins(
    event_type: str, queue: str, aggregate_type: str | None, expected: tuple[str, ...]
) -> None:
    for _ in range(2):  # the second time from memory
        assert ROUTING.destinations(event_type, queue, aggregate_type) == expected


def test_what_is_remembered_is_bounded_and_changes_nothing() -> None:
    routing = Routing([Rule("a*", to="one")])
    for number in range(2 * REMEMBERED):
        assert routing.destinations(f"a{number}", "default", None) == ("one",)
    assert len(routing._found) == REMEMBERED


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"event_type": "", "to": "a"}, "the pattern of event_type must not be empty"),
        ({"event_type": "*", "to": "a", "queue": ""}, "the pattern of queue must not be empty"),
        ({"event_type": "*", "to": "a", "aggregate_type": ""}, "the pattern of aggregate_type must not be empty"),
        ({"event_type": "*", "to": []}, "leads to 1 to 100 destinations, not 0"),
        ({"event_type": "*", "to": [f"d{n}" for n in range(101)]}, "leads to 1 to 100 destinations, not 101"),
        ({"event_type": "*", "to": ["a", "b", "a"]}, "one destination twice: a, b, a"),
        ({"event_type": "*", "to": ["with blank"]}, "queue 'with blank' may hold only letters"),
        ({"event_type": "*", "to": [""]}, "may hold only letters"),
        ({"event_type": "*", "to": ["q" * 101]}, "more than the limit of 100"),
        ({"event_type": "*", "to": [7]}, "queue must be text, not int"),
    ],
)
def test_rules_that_cannot_work_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Rule(**arguments)


def test_no_rule_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one rule"):
        Routing([])


def test_patterns_are_shell_patterns_and_match_whole_texts() -> None:
    event_type, queue, aggregate_type = Match(event_type="a[bc].?", queue="q").compiled()
    assert event_type.fullmatch("ab.x")
    assert not event_type.fullmatch("ab.xy")
    assert not queue.fullmatch("qq")
    assert aggregate_type.fullmatch("")
