"""SQS on a moto server: attributes, bodies, groups, batches taken in part, refusals, credentials."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.aws.entry import MAX_GROUP_CHARS, decode_body, encoded_body, group_id
from fencepost.publishers.aws.sqs import SqsPublisher
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.publisher_conformance import FaultProxy
from tests.publishers.aws_front import AwsFront, error
from tests.publishers.in_use import Shown, in_use
from tests.publishers.moto_server import REGION, MotoServer, attributes_of, aws_environment, decoded


@pytest.fixture
def moto(shared_moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> MotoServer:
    """Return a server with two empty queues, ``orders`` and ``orders.fifo``."""
    aws_environment(monkeypatch)
    shared_moto.start()
    shared_moto.create_queue("orders")
    shared_moto.create_queue("orders.fifo")
    return shared_moto


@pytest.fixture
async def front(moto: MotoServer) -> AsyncIterator[AwsFront]:
    async with AwsFront(moto.port) as front:
        yield front


def opened(
    server: MotoServer | AwsFront | FaultProxy, queue: str = "orders", query: str = "", *, timeout: float = 10.0
) -> AbstractAsyncContextManager[SqsPublisher]:
    endpoint = f"http://127.0.0.1:{server.port}"
    return in_use(SqsPublisher(f"sqs://{REGION}/{queue}?endpoint={endpoint}&timeout={timeout}{query}"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqs://eu-west-1", "it must be like sqs://region"),
        ("sqs://eu-west-1/", "it must be like"),
        ("sqs://eu-west-1/12/orders", "the account being 12 digits"),
        ("sqs://eu-west-1/or ders", "blanks"),
        ("sqs://eu-west-1/or%20ders", "it must be like"),
        ("sqs://eu-west-1/orders.fifo.x", "it must be like"),
        ("sqs://127.0.0.1:4566/orders", r"another server is \?endpoint="),
        ("sqs://eu-west-1/orders?endpoint=localhost:4566", "endpoint must be like"),
        ("sqs://eu-west-1/orders?max_bytes=1048577", "max_bytes must be"),
        ("sqs://eu-west-1/orders?delay=3", "unknown option"),
        ("sqs://key@eu-west-1/orders", "access_key and secret_key go together"),
        ("sqs://eu-west-1/orders?access_key_env=NOT_SET_ANYWHERE&secret_key_env=X", "NOT_SET_ANYWHERE"),
        ("sqs://eu-west-1/orders?ca=/not/there", "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SqsPublisher(url)


class TestBody:
    @pytest.mark.parametrize(
        ("payload", "body", "encoding"),
        [
            (b'{"a": 1}', '{"a": 1}', ""),
            ("é\r\n\t\N{ROCKET}".encode(), "é\r\n\t\N{ROCKET}", ""),
            (b"", "-", "empty"),
            (b"\xff", "/w==", "base64"),
            (b"a\x0bb", "YQti", "base64"),
            ("\ufffe".encode(), "77++", "base64"),
        ],
    )
    def test_documented_rule(self, payload: bytes, body: str, encoding: str) -> None:
        assert encoded_body(payload) == (body, encoding)

    @given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
    def test_any_payload_comes_back(self, payload: bytes) -> None:
        body, encoding = encoded_body(payload)
        assert body
        assert decode_body(body, encoding) == payload


class TestGroup:
    @pytest.mark.parametrize(
        ("key", "group"), [('["order","42"]', '["order","42"]'), ("", "_"), ("a b%é", "a%20b%25%C3%A9")]
    )
    def test_documented_rule(self, key: str, group: str) -> None:
        assert group_id(key) == group

    @given(st.text(max_size=400))
    def test_any_key_gives_a_group_that_aws_takes(self, key: str) -> None:
        group = group_id(key)
        assert 0 < len(group) <= MAX_GROUP_CHARS
        assert all("!" <= char <= "~" for char in group)

    def test_long_keys_stay_apart(self) -> None:
        assert group_id("x" * 800 + "a") != group_id("x" * 800 + "b")


async def test_attributes_are_few_and_all_headers_are_in_one(moto: MotoServer) -> None:
    headers = {f"h{number}": "x" for number in range(30)} | {"traceparent": "00-1-2-01", "a": "é"}
    message = sample_message("order paid", headers=headers)
    async with opened(moto) as publisher:
        await publisher.publish(message, sample_delivery(token=7))
    (stored,) = moto.drained("orders")
    attributes = attributes_of(stored)
    everything = json.loads(attributes.pop("Fencepost-Headers"))
    assert attributes == {
        "Fencepost-Message-Id": str(message.message_id),
        "Fencepost-Event-Type": "order paid",
        "Content-Type": "application/json",
        "traceparent": "00-1-2-01",
    }
    assert (everything["Fencepost-Token"], everything["h29"], everything["a"]) == ("7", "x", "%C3%A9")
    assert stored["Body"].encode() == message.payload


async def test_the_pages_reader_reads_all_of_it(moto: MotoServer) -> None:
    page = Path(__file__).parents[2] / "docs" / "destinations" / "sqs.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own page
    payloads = [b"", b"\xff", b'{"a": 1}']
    async with opened(moto) as publisher:
        for payload in payloads:
            await publisher.publish(sample_message(payload=payload), sample_delivery(token=7))
    read = [names["read"](one) for one in moto.drained("orders")]
    assert sorted(payload for _, payload in read) == sorted(payloads)
    assert all(headers["Fencepost-Token"] == "7" for headers, _ in read)


async def test_fifo_groups_by_key_and_drops_repeats_which_is_success(moto: MotoServer) -> None:
    keyed, free = sample_message(ordering_key="a b"), sample_message()
    async with opened(moto, "orders.fifo") as publisher:
        for attempt in (1, 2):
            await publisher.publish(keyed, sample_delivery(attempt=attempt))
        await publisher.publish(free, sample_delivery())
        replay = sample_message(ordering_key="a b")
        await publisher.publish(replay, sample_delivery(replay_of=str(keyed.message_id)))
    stored = [one["Attributes"] for one in moto.drained("orders.fifo")]
    groups = {one["MessageDeduplicationId"]: one["MessageGroupId"] for one in stored}
    assert len(stored) == 3
    assert groups == {
        str(keyed.message_id): "a%20b",
        str(free.message_id): str(free.message_id),
        str(replay.message_id): "a%20b",
    }


async def test_an_account_in_the_url_is_the_queues_owner(front: AwsFront) -> None:
    seen = []
    front.answering = lambda operation, parameters: seen.append(parameters)
    async with opened(front, "123456789012/orders") as publisher:
        await publisher.publish(sample_message(), sample_delivery())
    assert seen[0] == {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}


class TestBatches:
    async def test_ten_a_request_and_a_key_one_after_another(self, moto: MotoServer, front: AwsFront) -> None:
        batch = [sample_message(id=number) for number in range(25)]
        batch += [sample_message(id=number, ordering_key="k") for number in range(3)]
        async with opened(front) as publisher:
            assert await publisher.publish_batch(batch, [sample_delivery()] * 28) == [None] * 28
        assert front.requests == {"GetQueueUrl": 1, "SendMessageBatch": 3 + 2}
        assert len(moto.drained("orders")) == 28

    async def test_a_request_stays_below_the_limit(self, moto: MotoServer, front: AwsFront) -> None:
        batch = [sample_message(id=number, payload=b"x" * 400_000) for number in range(5)]
        async with opened(front) as publisher:
            assert await publisher.publish_batch(batch, [sample_delivery()] * 5) == [None] * 5
        assert front.requests["SendMessageBatch"] == 3

    async def test_failed_entries_are_read_one_by_one(self, moto: MotoServer, front: AwsFront) -> None:
        front.failing = {
            1: ("InvalidMessageContents", True),
            2: ("InternalError", False),
            3: ("RequestThrottled", True),
            4: ("KmsDisabled", True),
            5: ("InvalidParameterValue", False),
        }
        batch = [sample_message(id=number) for number in range(8)]
        async with opened(front) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 8)
        assert [type(outcome) for outcome in outcomes[1:6]] == [Permanent, *[Retryable] * 4]
        assert [outcomes[0], *outcomes[6:]] == [None] * 3
        assert "InvalidMessageContents: so it is" in str(outcomes[1])
        delayed, kms = outcomes[3], outcomes[4]
        assert isinstance(delayed, Retryable)
        assert delayed.delay is not None
        assert isinstance(kms, Retryable)
        assert kms.unavailable, "nothing gets through until the key is enabled"

    @pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
    async def test_a_key_stops_at_its_failed_entry(self, moto: MotoServer, front: AwsFront, queue: str) -> None:
        front.failing = {1: ("InternalError", False)}
        batch = [sample_message(id=number, ordering_key="k") for number in range(4)]
        batch.append(sample_message(id=9, ordering_key="other"))
        async with opened(front, queue) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 5)
        assert [outcome is None for outcome in outcomes] == [True, False, False, False, True]
        arrived = {decoded(one).message_id for one in moto.drained(queue)}
        assert arrived == {batch[0].message_id, batch[4].message_id}

    async def test_what_the_answer_does_not_name_is_not_delivered(self, front: AwsFront) -> None:
        front.answering = lambda operation, parameters: (
            (200, {"Successful": [{"Id": "0", "MessageId": "x", "MD5OfMessageBody": "x"}]})
            if operation == "SendMessageBatch"
            else None
        )
        async with opened(front) as publisher:
            outcomes = await publisher.publish_batch([sample_message(), sample_message()], [sample_delivery()] * 2)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Retryable)

    async def test_a_request_refused_for_one_of_its_messages_is_tried_one_by_one(self, moto: MotoServer) -> None:
        sqs = moto.client("sqs")
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2048"})
        batch = [sample_message(id=number, payload=b"x" * (5_000 if number == 4 else 10)) for number in range(10)]
        async with opened(moto) as publisher:
            outcomes = await publisher.publish_batch(batch, [sample_delivery()] * 10)
        assert isinstance(outcomes[4], Permanent)
        assert "2048" in str(outcomes[4])
        assert [outcome for place, outcome in enumerate(outcomes) if place != 4] == [None] * 9
        assert len(moto.drained("orders")) == 9

    async def test_the_size_check_counts_attributes(self, moto: MotoServer, front: AwsFront) -> None:
        async with opened(front, query="&max_bytes=1500") as publisher:
            with pytest.raises(Permanent) as refused:
                await publisher.publish(sample_message(payload=b"x" * 1_500), sample_delivery())
            over = int(str(refused.value).split(" bytes")[0]) - 1_500
            await publisher.publish(sample_message(payload=b"x" * (1_500 - over)), sample_delivery())
            with pytest.raises(Permanent):
                await publisher.publish(sample_message(payload=b"x" * (1_501 - over)), sample_delivery())
        assert front.requests["SendMessageBatch"] == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "unavailable", "delay"),
        [
            (400, "RequestThrottled", True, True),
            (400, "ThrottlingException", True, True),
            (403, "AccessDeniedException", True, False),
            (403, "ExpiredTokenException", True, False),
            (403, "SignatureDoesNotMatch", True, False),
            (400, "KmsAccessDenied", True, False),
            (503, "ServiceUnavailable", True, False),
            (500, "InternalFailure", False, False),
            (400, "SomethingNew", False, False),
        ],
    )
    async def test_is_retryable_and_asked_once(
        self, front: AwsFront, status: int, code: str, unavailable: bool, delay: bool
    ) -> None:
        front.answering = lambda operation, _: error(status, code) if operation == "SendMessageBatch" else None
        async with opened(front) as publisher:
            outcomes = await publisher.publish_batch([sample_message(), sample_message()], [sample_delivery()] * 2)
            for outcome in outcomes:
                assert isinstance(outcome, Retryable)
                assert code in str(outcome)
                assert "queue 'orders' in eu-west-1" in str(outcome)
                assert (outcome.unavailable, outcome.delay is not None) == (unavailable, delay)
            assert front.requests["SendMessageBatch"] == 1, "botocore would repeat it on its own"
            front.answering = lambda operation, parameters: None
            await publisher.publish(sample_message(), sample_delivery())

    async def test_something_else_that_answers_is_not_an_acknowledgement(self, front: AwsFront) -> None:
        async with opened(front) as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            for status, body in (
                (200, b"hello"),
                (200, b"{}"),
                (200, b"[]"),
                (200, b""),
                (200, b"[" * 100_000),
                (302, b""),
                (404, b"no"),
            ):
                front.answering = lambda operation, _, own=(status, body): own  # type: ignore[misc]  # a default binds it
                with pytest.raises(Retryable):
                    await publisher.publish(sample_message(), sample_delivery())

    async def test_a_queue_that_is_deleted_and_made_again(self, moto: MotoServer) -> None:
        sqs = moto.client("sqs")
        async with opened(moto) as publisher:
            await publisher.publish(sample_message(), sample_delivery())
            sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="orders")["QueueUrl"])
            for _ in range(2):
                with pytest.raises(Retryable, match=r"queue 'orders' in eu-west-1: .* create it") as failure:
                    await publisher.publish(sample_message(), sample_delivery())
                assert failure.value.unavailable
            moto.create_queue("orders")
            await publisher.publish(sample_message(), sample_delivery())
        assert len(moto.drained("orders")) == 1


def test_on_the_dispatchers_own_loop_it_delivers_gives_up_and_recovers(moto: MotoServer) -> None:
    async def scenario() -> None:
        with FaultProxy("127.0.0.1", moto.port) as proxy:
            async with opened(proxy, timeout=1.0) as publisher:
                batch = [sample_message(id=number) for number in range(30)]
                assert await publisher.publish_batch(batch, [sample_delivery()] * 30) == [None] * 30
                proxy.black_hole()
                with pytest.raises(Retryable, match="no answer before the deadline"):
                    await publisher.publish(sample_message(), sample_delivery())
                proxy.heal()
                await publisher.publish(sample_message(), sample_delivery())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
    assert len(moto.drained("orders")) in (31, 32)


class TestCredentials:
    SECRET = "hunter2/secret+key"  # noqa: S105 - made up for this test

    async def test_none_at_all(self, moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        async with opened(moto) as publisher:
            with pytest.raises(Retryable, match="Unable to locate credentials") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable

    async def test_the_chain_a_profile_the_url_and_variables(
        self, front: AwsFront, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        shared = tmp_path / "credentials"
        shared.write_text("[shop]\naws_access_key_id = from-profile\naws_secret_access_key = x\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
        monkeypatch.setenv("SHOP_KEY", "from-variable")
        monkeypatch.setenv("SHOP_SECRET", self.SECRET)
        for userinfo, query, key in (
            ("", "", "testing-id"),
            ("", "&profile=shop", "from-profile"),
            ("from-url:hunter2%2Fsecret%2Bkey@", "", "from-url"),
            ("", "&access_key_env=SHOP_KEY&secret_key_env=SHOP_SECRET", "from-variable"),
        ):
            front.keys.clear()
            publisher = SqsPublisher(
                f"sqs://{userinfo}{REGION}/orders?endpoint=http://127.0.0.1:{front.port}{query}"
            )
            await publisher.publish(sample_message(), sample_delivery())
            await publisher.close()
            assert set(front.keys) == {key}

    async def test_a_profile_that_is_not_there(self, moto: MotoServer) -> None:
        async with opened(moto, query="&profile=nobody") as publisher:
            with pytest.raises(Retryable, match="nobody") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert failure.value.unavailable

    async def test_expired_ones_are_read_again(self, front: AwsFront, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
        async with opened(front) as publisher:
            front.answering = lambda operation, _: error(403, "ExpiredToken") if front.keys[-1] == "old" else None
            with pytest.raises(Retryable, match="ExpiredToken"):
                await publisher.publish(sample_message(), sample_delivery())
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
            await publisher.publish(sample_message(), sample_delivery())
        assert front.keys[-1] == "new"

    async def test_never_in_repr_errors_or_logs(
        self, front: AwsFront, shown: Shown, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_TOKEN", "hunter2-session-token")
        login = f"hunter2access:hunter2secret@{REGION}/orders"
        url = f"sqs://{login}?endpoint=http://127.0.0.1:{front.port}&session_token_env=SHOP_TOKEN"
        async with in_use(SqsPublisher(url)) as publisher:
            assert await shown.publish(publisher) is None
            refused = error(403, "InvalidClientTokenId", "hunter2access hunter2secret hunter2-session-token")
            front.answering = lambda operation, _: refused
            await shown.publish(publisher)
        everything = shown.everything()
        assert "InvalidClientTokenId" in everything
        assert "hunter2" not in everything
