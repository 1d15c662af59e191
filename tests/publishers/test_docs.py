"""The code in docs/publishers.md runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencepost import Verdict
from fencepost.core.ledger import AttemptResult, Cause
from fencepost.errors import Defer, Permanent
from fencepost.publishers.callable import as_publisher
from fencepost.publishers.registry import BUILT_IN
from fencepost.testing import sample_delivery, sample_message

PAGE = Path(__file__).parents[2] / "docs" / "publishers.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Run the page's blocks from top to bottom, as a reader would."""
    names: dict[str, Any] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 - our own page
    return names


async def test_the_small_publishers(page: dict[str, Any]) -> None:
    assert as_publisher(page["to_the_void"]).is_async
    mailer = page["Mailer"]()
    publish = as_publisher(mailer).call
    with pytest.raises(Permanent):
        await publish(sample_message(), sample_delivery())
    with pytest.raises(Defer):
        await publish(sample_message(payload=b'{"address": "x"}'), sample_delivery())
    await publish(sample_message(payload=b'{"address": "x", "confirmed": true}'), sample_delivery())
    assert len(mailer.outbox) == 1


async def test_the_destination(page: dict[str, Any]) -> None:
    pigeon = page["PigeonPublisher"]("pigeon://loft?timeout=2")
    await pigeon.publish(sample_message(), sample_delivery())
    assert len(pigeon.flown) == 1


def test_the_five_lines_run_the_suite(page: dict[str, Any]) -> None:
    suite = page["PigeonConformance"]()
    names = [name for name in dir(suite) if name.startswith("test_")]
    for name in names:
        getattr(suite, name)()
    assert len(names) > 25


@pytest.mark.parametrize("scheme", sorted(set(BUILT_IN) - {"amqps", "https", "mqtts", "rediss"}))
def test_the_options_of_each_destination_are_on_its_page(scheme: str) -> None:
    module = importlib.import_module(BUILT_IN[scheme].partition(":")[0])
    page = "rabbitmq" if scheme == "amqp" else scheme
    text = (PAGE.parent / "destinations" / f"{page}.md").read_text(encoding="utf-8")
    options = set(getattr(module, "OPTIONS", {"timeout"}))
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == options


async def test_the_publisher_that_can_be_asked() -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    [block] = re.findall(r"```python\n(.*?)```", (PAGE.parent / "recovery.md").read_text("utf-8"), re.DOTALL)
    exec(block, names)  # noqa: S102 - our own page
    payments = names["Payments"]()
    answers = {"404": Verdict.NOT_DONE, "200 settled": Verdict.DONE, "200 under way": Verdict.UNKNOWN}
    for given, verdict in answers.items():
        status, _, state = given.partition(" ")
        answer = httpx.Response(int(status), json={"state": state})
        payments._client = httpx.AsyncClient(
            base_url="https://payments.example", transport=httpx.MockTransport(lambda _, answer=answer: answer)
        )
        verify = as_publisher(payments).verify
        assert verify is not None
        assert await verify(sample_message(), sample_delivery()) is verdict


def test_every_result_and_cause_of_an_attempt_is_documented() -> None:
    text = (PAGE.parent / "recovery.md").read_text("utf-8")
    named = {
        name for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert {*AttemptResult, *Cause} <= named
