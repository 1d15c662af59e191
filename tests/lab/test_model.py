"""The model holds in its reduced size, every sabotage of it is rejected, and its names are those of the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.model import spin, table
from lab.model.config import FULL, REDUCED, Outbox, Space
from lab.model.spin import Incomplete, Model
from lab.model.variants import VARIANTS

from fencepost.core.states import TRANSITIONS, Event, State, Transition
from tests.servers import found

SOURCES = {file.name: file.read_text() for file in spin.HERE.glob("*.pml")}
TEXT = "\n".join(SOURCES.values())
BY_EVERY_PART = {"as_the_table_says"}
"""Properties that no sabotage of the list is made against; each has a test of its own."""


@pytest.fixture(scope="module")
def program() -> str:
    found("gcc", "run `make servers`, or apt-get install gcc libc6-dev")
    return found("spin", "run `make servers`, or apt-get install spin")


@pytest.fixture(scope="module")
def models(program: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Both, compiled without optimizing, which takes longer than these runs."""
    directory = tmp_path_factory.mktemp("model")
    return {
        name: Model(name, directory, spin=program, optimize=False, memory=1_000) for name in ("outbox", "inbox")
    }


# --- fencepost as it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(REDUCED))
def test_every_state_of_a_reduced_space_holds(models: dict[str, Model], name: str) -> None:
    space = REDUCED[name]
    seen = models[space.model].explore(space)
    assert seen.violated is None
    assert seen.states > 10_000


def test_the_full_spaces_have_three_workers_three_messages_and_two_keys() -> None:
    outboxes = [space for space in FULL.values() if isinstance(space, Outbox)]
    assert any(space.workers == 3 and len(set(space.keys)) == 2 for space in outboxes)
    assert any(space.workers == 3 and len(set(space.keys)) == 1 for space in outboxes)
    assert {len(space.keys) for space in outboxes} == {3}


@pytest.mark.parametrize("event", table.EVENTS)
def test_every_event_happens_in_a_reduced_space(models: dict[str, Model], event: str) -> None:
    outboxes = [space for space in REDUCED.values() if isinstance(space, Outbox)]
    assert any(models["outbox"].happens(space, event) for space in reversed(outboxes))


def test_a_search_that_was_cut_off_is_not_taken_for_a_complete_one(models: dict[str, Model]) -> None:
    with pytest.raises(Incomplete):
        models["outbox"].explore(Outbox(), depth=100)


# --- sabotages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(VARIANTS))
def test_a_sabotage_is_rejected_by_what_it_was_made_against(models: dict[str, Model], name: str) -> None:
    variant = VARIANTS[name]
    assert models[variant.space.model].explore(variant.space, variant=name).violated == variant.violates


def test_there_is_a_sabotage_against_every_property() -> None:
    declared = {
        name
        for line in re.findall(r"^hidden byte (\w+(?:, \w+)+);", TEXT, re.MULTILINE)
        for name in line.split(", ")
    }
    assert declared == {variant.violates for variant in VARIANTS.values()} | BY_EVERY_PART
    assert all(re.search(rf",\s+{name}\)", TEXT) for name in declared)


def test_every_sabotage_of_the_model_is_listed() -> None:
    assert set(re.findall(r"BROKEN\((\w+)\)", TEXT)) - {"name"} == set(VARIANTS)
    assert len(VARIANTS) >= 20


def test_a_counterexample_can_be_read(models: dict[str, Model]) -> None:
    variant = VARIANTS["promote_in_one_statement"]
    seen = models["outbox"].counterexample(variant.space, "promote_in_one_statement")
    assert seen.violated == variant.violates
    assert any(re.fullmatch(r"worker \d: claim locks what is due: \{[012, ]+\}", line) for line in seen.trace)
    assert any(line.strip() == "message 1: park" for line in seen.trace)
    assert seen.trace[-1].strip() == "message 0: delivered"


# --- the table ---------------------------------------------------------------------------------------------


def test_every_event_is_modelled_or_stands_for_one_or_is_out_of_scope_for_a_reason() -> None:
    named = [*table.MODELLED, *table.STANDS_FOR, *table.OUT_OF_SCOPE]
    assert sorted(named) == sorted(Event)
    assert all(table.OUT_OF_SCOPE.values())
    assert not {event for _, event in TRANSITIONS} & set(table.OUT_OF_SCOPE)


@pytest.mark.parametrize("event", list(table.STANDS_FOR))
def test_an_event_does_what_the_one_does_that_stands_for_it(event: Event) -> None:
    assert table.STANDS_FOR[event] in table.MODELLED
    assert effects_of(event) == effects_of(table.STANDS_FOR[event])


def effects_of(event: Event) -> dict[State, object]:
    return {state: table.effect(rule) for (state, each), rule in TRANSITIONS.items() if each is event}


def test_the_model_has_the_events_and_states_of_the_table_and_no_others() -> None:
    happens = set(re.findall(r"happens\([\w\[\]]+, (\w+)\)", TEXT)) - {"what"}
    assert happens == {table.name_of(event) for event in table.MODELLED}
    states = set(re.findall(r"status [!=]= (\w+)|status = (\w+)[;\n]", TEXT))
    assert {one or other for one, other in states} == {*map(str, State), table.ABSENT}


def test_a_change_that_the_table_does_not_have_is_rejected(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is, the model as it is, held to a table in which nothing is parked."""
    rules: dict[tuple[State, Event], Transition] = {
        key: rule for key, rule in TRANSITIONS.items() if key[1] is not Event.PARK
    }
    monkeypatch.setattr(table, "TRANSITIONS", rules)
    space: Space = REDUCED["two workers, two keys"]
    model = Model("outbox", tmp_path, spin=program, optimize=False, memory=1_000)
    assert model.explore(space).violated == "as_the_table_says"
