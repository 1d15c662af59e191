"""The fuzzer: some thousands of cases of every target, and proof that each oracle can fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lab.fuzz import campaign
from lab.fuzz import places as lab_places
from lab.fuzz.campaign import Tally, line, numbered_case, report, run_target, shares
from lab.fuzz.catalogue import TARGETS, by_name
from lab.fuzz.command import SECRET
from lab.fuzz.places import Places
from lab.fuzz.smaller import smaller
from lab.fuzz.target import ACCEPTED, Case, OneByOne, Result, Target, Verdict, failed, refused
from lab.journal import Journal

from fencepost.cli import redaction
from fencepost.cli.settings import addresses
from fencepost.consumers import received
from fencepost.core import draft, number
from fencepost.embedded import PostgresServer
from fencepost.publishers import address, headers
from fencepost.publishers.http import publisher as http
from fencepost.publishers.redis import publisher as redis
from fencepost.store import job_fenced

SEED = 6
CASES = {
    "enqueue": 400, "enqueue-async": 100, "enqueue-asyncpg": 80, "enqueue-psycopg2": 80, "foreign": 25,
    "jobs": 80, "schedules": 80, "receivers": 150, "travel": 600, "received": 1_000, "addresses": 30,
    "configuration": 30, "commands": 20, "http-answers": 60, "redis-answers": 30, "nats-answers": 30,
    "mqtt-answers": 20, "rabbitmq-answers": 15, "sqs-answers": 15, "sns-answers": 10,
}  # fmt: skip
MOST_PLANTED = {"enqueue": 40, "jobs": 20}
"""Enough to find what is planted; what fails costs more time than what holds."""


@pytest.fixture(scope="module")
def places(postgres18: PostgresServer) -> Iterator[Places]:
    with lab_places.places() as found:
        found.use(postgres18)
        yield found


def run(places: Places, name: str, cases: int) -> Tally:
    target = by_name(name)
    with target.opened(places):
        return run_target(target, SEED, range(cases), lambda _: None, shrink=False)


@pytest.mark.timeout(300)  # RabbitMQ takes its time to come up on a machine that does other things
@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_no_fault_is_found(places: Places, name: str) -> None:
    tally = run(places, name, CASES[name])
    assert tally.holds, f"{line(tally)}\n" + "\n".join(map(str, tally.failures))


# --- each oracle can fail -------------------------------------------------------------------------------------


def _as_ascii(payload: Any, name: str = "payload") -> str:
    return json.dumps(payload, separators=(",", ":"), allow_nan=False)


def _unchecked(name: str, value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _anything(name: str, value: Any, *, least: int) -> Any:
    return value


def _as_it_is(text: str, **_: Any) -> str:
    return text


def _lossy(value: str) -> str:
    return value.replace("%", "")


def _shortened(text: str) -> str:
    return text[:3]


def _shown_as_it_is(_: object, text: str) -> str:
    return text


PLANTED: dict[str, tuple[str, Any, str, Callable[..., Any], str]] = {
    "payloads written otherwise": ("enqueue", draft, "_dump", _as_ascii, "another payload"),
    "text that nobody checked": ("enqueue", draft, "utf8", _unchecked, ""),
    "headers that are not encoded": ("travel", headers, "encode_value", _as_it_is, ""),
    "headers that are decoded badly": ("travel", headers, "decode_value", _lossy, ""),
    "names that are not checked": ("received", received, "checked_number", _anything, "a number out of range"),
    "errors that are cut": ("jobs", job_fenced, "storable", _shortened, "another error"),
    "addresses that are not masked": ("addresses", address, "masked", str, "a secret is shown"),
    "whatever Redis says is an id": (
        "redis-answers",
        redis,
        "error_text",
        lambda _: "",
        "delivered after a made-up",
    ),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found(
    places: Places, planted: tuple[str, Any, str, Callable[..., Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, where, attribute, broken, kind = planted
    monkeypatch.setattr(where, attribute, broken)
    tally = run(places, name, min(CASES[name], MOST_PLANTED.get(name, 1_000)))
    assert tally.verdicts[Verdict.FAILED]
    assert any(kind in failure.why for failure in tally.failures), tally.failures


def test_secrets_that_are_shown_are_found(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    target = by_name("configuration")
    file = f'[destinations]\nx = "http://u:{SECRET}@h/"'.encode()
    with target.opened(places):
        assert target.judged([{"file": file, "json": True}]) == [ACCEPTED]
        monkeypatch.setattr(redaction.Redactor, "__call__", _shown_as_it_is)
        monkeypatch.setattr(addresses, "masked", str)
        assert target.judged([{"file": file, "json": True}])[0].kind == "a secret is shown"


def test_an_http_answer_that_is_taken_for_another_is_found(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http.HttpPublisher, "_failure", lambda *_: None)
    tally = run(places, "http-answers", 60)
    assert any("without an acknowledgement" in failure.why for failure in tally.failures)


def test_numbers_that_nobody_checked_are_found(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.core.inbox.checked_number", _anything)
    monkeypatch.setattr("fencepost.client.inbox.checked_number", _anything)
    assert number.MAX_NUMBER
    assert run(places, "receivers", 100).verdicts[Verdict.FAILED]


# --- the campaign itself --------------------------------------------------------------------------------------


class Lengths(OneByOne):
    """Text of one to three bytes is accepted, none refused; a long one with a "b" is a fault."""

    name = "lengths"

    def case(self, chance: Random) -> Case:
        return {"text": "".join(chance.choice("ab") for _ in range(chance.randrange(9)))}

    def one(self, case: Case) -> Result:
        text = case["text"]
        if len(text) > 3 and "b" in text:
            return failed("long", text)
        return ACCEPTED if text else refused("empty")


def test_a_failure_is_made_smaller_and_says_how_to_repeat_it() -> None:
    tally = run_target(Lengths(), 1, range(50), lambda _: None)
    (failure,) = tally.failures
    assert failure.shown == "{'text': 'aaab'}"
    assert f"--target lengths --seed 1 --case {failure.number}" in str(failure)
    assert not tally.holds
    assert report([tally], 1)["holds"] is False
    assert run_target(Lengths(), 1, [failure.number], lambda _: None).failures[0].why == failure.why


@pytest.mark.parametrize("text", ["", "a"])
def test_an_oracle_that_always_says_the_same_is_not_trusted(text: str) -> None:
    class Same(Lengths):
        def case(self, chance: Random) -> Case:
            return {"text": text}

    tally = run_target(Same(), 1, range(60), lambda _: None)
    assert (tally.blind, tally.holds) == (f"not one case was {'accepted' if not text else 'refused'}", False)
    assert run_target(Same(), 1, range(59), lambda _: None).holds


@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_the_same_seed_makes_the_same_case(name: str) -> None:
    one, same, other = (repr(numbered_case(by_name(name), seed, 7)) for seed in (1, 1, 2))
    assert _without_places(one) == _without_places(same)
    assert one != other


def _without_places(text: str) -> str:
    """Leave out where objects lie in memory."""
    return text.partition(" at 0x")[0]


class Short(Lengths):
    """Text that is accepted, or empty; the seed's cases are counted."""

    batch = 10

    def __init__(self) -> None:
        self.asked = 0

    def one(self, case: Case) -> Result:
        self.asked += 1
        return super().one({"text": case["text"][:3]})


def test_a_run_that_was_broken_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(target: Target) -> Tally:
        with lab_places.places() as none:
            (tally,) = campaign.run([target], none, Journal(kept, "target"), seed=1, cases=50, say=lambda _: None)
        return tally

    monkeypatch.setattr(campaign, "KEEPING_SECONDS", -1)
    kept, target = tmp_path / "cases", Short()
    whole = ran(target)
    assert target.asked == whole.cases == 50
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join([*lines[:2], lines[2][:40]]))  # as if it had been killed there
    again = ran(target)
    assert target.asked == 50 + 30
    assert (again.cases, again.verdicts, again.refusals) == (whole.cases, whole.verdicts, whole.refusals)


def test_every_target_gets_its_share() -> None:
    found = shares([make() for make in TARGETS], 100_000)
    assert 100_000 <= sum(found.values()) < 100_000 + len(found)
    assert min(found.values()) > 500
    assert set(found) == set(CASES)


@pytest.mark.parametrize(
    ("case", "fails", "smallest"),
    [
        ("xxbxx", lambda each: "b" in each, "b"),
        ([5, 1000, {"a": "xyz"}], lambda each: any(isinstance(one, int) and one > 10 for one in each), [15]),
        (b"\x00" * 999, lambda each: len(each) > 30, b"\x00" * 31),
        ((1, 2), lambda _: True, ()),
    ],
)
def test_cases_become_as_small_as_they_can(case: Case, fails: Callable[[Case], bool], smallest: Case) -> None:
    assert smaller(case, fails) == smallest
