"""Signatures that the reference library of standardwebhooks.com accepts, on what a real receiver got."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.http_receiver import HttpReceiver, Request, plain

EXAMPLE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The secret of the reference libraries' own tests."""


def new_secret(size: int = 32) -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(size)).decode()


def verified(secret: str, request: Request) -> None:
    """Raise unless the reference library takes the request for genuine."""
    Webhook(secret).verify(request.body, dict(request.headers), json_parse=False)


@pytest.fixture
def url(receiver: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("fencepost.publishers.credentials.REREAD_SECONDS", 0.0)
    return f"{receiver.url}/hook?allow_private=on&secret_file={tmp_path / 'secret'}"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], object]:
    return (tmp_path / "secret").write_text


@pytest.mark.parametrize("payload", [b'{"a": 1}', b"", '{ "b":\t"заказ \N{ROCKET}" }\r\n'.encode()])
async def test_the_reference_library_verifies(
    receiver: HttpReceiver, url: str, write: Callable[[str], object], payload: bytes
) -> None:
    write(f"{EXAMPLE}\n")
    publisher = HttpPublisher(url)
    message = sample_message(payload=payload)
    for attempt in (1, 2):
        await publisher.publish(message, sample_delivery(attempt=attempt, token=attempt))
    await publisher.close()
    for request in receiver.requests:
        verified(EXAMPLE, request)
        assert request.header("webhook-id") == str(message.message_id), "the same in each attempt"
        with pytest.raises(WebhookVerificationError):
            verified(new_secret(), request)
    changed = receiver.requests[0]
    tampered = Request(changed.method, changed.target, changed.headers, changed.body + b" ")
    with pytest.raises(WebhookVerificationError):
        verified(EXAMPLE, tampered)


async def test_the_timestamp_is_that_of_the_attempt(
    receiver: HttpReceiver, url: str, write: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(EXAMPLE)
    publisher = HttpPublisher(url)
    for instant in (1_674_087_231.9, 1_674_090_000.0):
        monkeypatch.setattr("fencepost.publishers.http.publisher.time.time", lambda instant=instant: instant)
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    assert [one.header("webhook-timestamp") for one in receiver.requests] == ["1674087231", "1674090000"]
    with pytest.raises(WebhookVerificationError, match="too old"):
        verified(EXAMPLE, receiver.requests[0])


async def test_a_known_answer() -> None:
    # From the example of the specification's reference tests.
    from datetime import UTC, datetime

    from fencepost.publishers.address import parse_address
    from fencepost.publishers.http.webhook_signature import Signer

    os.environ["FENCEPOST_TEST_SECRET"] = EXAMPLE
    try:
        signer = Signer(parse_address("http://h/?secret_env=FENCEPOST_TEST_SECRET", options={"secret_env"}))
    finally:
        del os.environ["FENCEPOST_TEST_SECRET"]
    headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1_614_265_330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    reference = Webhook(EXAMPLE).sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1_614_265_330, UTC), '{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == reference


@pytest.mark.parametrize("between", [" ", ",", "\n", ", "])
async def test_rotation_signs_with_each_secret_and_needs_no_restart(
    receiver: HttpReceiver, url: str, write: Callable[[str], object], between: str
) -> None:
    old, new = new_secret(24), new_secret(64)
    publisher_secrets = [(old,), (new, old), (new,)]
    write(old)
    publisher = HttpPublisher(url)
    for chosen in publisher_secrets:
        write(between.join(chosen))
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    before, during, after = receiver.requests
    verified(old, before)
    verified(old, during)
    verified(new, during)
    verified(new, after)
    assert (during.header("webhook-signature") or "").count(" ") == 1
    with pytest.raises(WebhookVerificationError):
        verified(old, after)


async def test_without_a_secret_nothing_is_signed(receiver: HttpReceiver) -> None:
    publisher = HttpPublisher(f"{receiver.url}/hook?allow_private=on")
    await publisher.publish(sample_message(headers={"webhook-signature": "v1,forged"}), sample_delivery())
    await publisher.close()
    (request,) = receiver.requests
    assert not any(name.lower().startswith("webhook-") for name, _ in request.headers)
    assert request.header("Fencepost-Header-webhook-signature") == "v1,forged"


async def test_what_is_signed_is_the_envelope_as_it_is_sent(
    receiver: HttpReceiver, url: str, write: Callable[[str], object]
) -> None:
    write(EXAMPLE)
    publisher = HttpPublisher(f"{url}&envelope=cloudevents-structured&source=/shop")
    await publisher.publish(sample_message(payload=b'{"a": 1}'), sample_delivery())
    await publisher.close()
    assert receiver.requests[0].body != b'{"a": 1}'
    verified(EXAMPLE, receiver.requests[0])


@pytest.mark.parametrize(
    "text",
    [
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_c2hvcnQ=",
        "whsec_not base64 at all!",
        "whsec_" + "é" * 40,
        pytest.param(new_secret(23), id="23 bytes"),
        pytest.param(new_secret(65), id="65 bytes"),
        " , ",
        pytest.param(" ".join(new_secret() for _ in range(6)), id="six"),
        "hunter2-hunter2-hunter2-hunter2",
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_shown(
    url: str, write: Callable[[str], object], text: str
) -> None:
    write(text)
    with pytest.raises(ConfigError, match="the signing secret cannot be used") as error:
        HttpPublisher(url)
    assert "hunter2" not in str(error.value)
    assert "MfKQ" not in str(error.value)


async def test_a_secret_that_breaks_while_running_sends_nothing_unsigned(
    receiver: HttpReceiver, url: str, write: Callable[[str], object]
) -> None:
    write(EXAMPLE)
    publisher = HttpPublisher(url)
    write("whsec_broken")
    with pytest.raises(Retryable, match="signing secret cannot be used") as failure:
        await publisher.publish(sample_message(), sample_delivery())
    assert failure.value.unavailable
    write(EXAMPLE)
    await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    assert len(receiver.requests) == 1


async def test_a_secret_is_not_shown_where_the_receiver_repeats_it(
    receiver: HttpReceiver, url: str, write: Callable[[str], object]
) -> None:
    write(EXAMPLE)
    receiver.answers["/hook"] = plain(400, body=f"your secret is {EXAMPLE}".encode())
    publisher = HttpPublisher(url)
    with pytest.raises(Permanent, match=r"your secret is whsec_\*\*\*") as failure:
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    assert "MfKQ" not in str(failure.value)


async def test_the_receiver_on_the_page_verifies(
    receiver: HttpReceiver, url: str, write: Callable[[str], object]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "destinations" / "http.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs"}
    exec(code, names)  # noqa: S102 - our own page
    write(EXAMPLE)
    publisher = HttpPublisher(url)
    await publisher.publish(sample_message(payload=b'{"a": 1}'), sample_delivery())
    await publisher.close()
    (request,) = receiver.requests
    headers = {name.lower(): value for name, value in request.headers}
    assert names["receive"](request.body, headers) == 204
    assert names["receive"](request.body + b" ", headers) == 400
