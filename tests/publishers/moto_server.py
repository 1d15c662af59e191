"""A moto server, which speaks the API of SQS and SNS, in a process of its own, stopped by its pid.

It keeps everything in memory. Nothing here or in the publishers under test may ask the real AWS, nor the
metadata service that a cloud machine would have: see `aws_environment`.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]  # has no types
import pytest
from botocore.config import Config  # type: ignore[import-untyped]  # has no types

from fencepost.embedded.ports import free_port
from fencepost.publishers.aws.entry import ENCODING, HEADERS, decode_body
from fencepost.testing.publisher_conformance import Received, received_from
from tests.servers import ServerProcess, found

REGION = "eu-west-1"
ACCOUNT = "123456789012"
"""The account of everybody, in moto."""


def aws_environment(patch: pytest.MonkeyPatch) -> None:
    """Leave made-up credentials in the environment, and no other way to any."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ACCESS_KEY_ID", "testing-id")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_CONFIG_FILE", os.devnull)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


class MotoServer(ServerProcess):
    """``moto_server``: it answers, and is empty, when `start` returns."""

    ready_seconds = 30.0

    def __init__(self, directory: Path) -> None:
        program, port = found("moto_server", "pip install 'moto[server]'"), free_port()
        super().__init__(directory, port, [program, "-H", "127.0.0.1", "-p", str(port)])
        self.url = f"http://127.0.0.1:{port}"
        self._clients: dict[str, Any] = {}

    def start(self) -> None:
        """Start it unless it runs, and wait until it answers, empty."""
        if not self.is_running:
            super().start()
        self.first_answer(self._reset, OSError)

    def _reset(self) -> None:
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=self.ready_seconds) as answer:  # noqa: S310 - ours
            assert answer.status == 200

    def stop(self) -> None:
        self.kill()  # it has nothing to lose

    def close(self) -> None:
        super().close()
        for client in self._clients.values():
            client.close()

    def client(self, service: str) -> Any:
        """Return a client of the tests' own; made once, because that takes a while."""
        if service not in self._clients:
            self._clients[service] = boto3.client(
                service,
                region_name=REGION,
                endpoint_url=self.url,
                aws_access_key_id="testing-id",
                aws_secret_access_key="testing-secret",  # noqa: S106 - made up
                config=Config(retries={"total_max_attempts": 1}, read_timeout=self.ready_seconds),
            )
        return self._clients[service]

    def create_queue(self, name: str) -> str:
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return str(self.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def create_topic(self, name: str, queue: str) -> str:
        """Create a topic, and a queue that gets its messages as they are."""
        self.create_queue(queue)
        attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        sns = self.client("sns")
        topic = str(sns.create_topic(Name=name, Attributes=attributes)["TopicArn"])
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}",
            Attributes={"RawMessageDelivery": "true"},
        )
        return topic

    def drained(self, name: str) -> list[dict[str, Any]]:
        """Return what is in a queue, in order, and take it out."""
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        found: list[dict[str, Any]] = []
        while True:
            answer = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
            )
            messages = answer.get("Messages", [])
            if not messages:
                return found
            found += messages
            sqs.delete_message_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                    for number, one in enumerate(messages)
                ],
            )


def attributes_of(message: dict[str, Any]) -> dict[str, str]:
    return {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}


def decoded(message: dict[str, Any]) -> Received:
    """Return a message of a queue, decoded by the rule of docs/destinations/sqs.md."""
    attributes = attributes_of(message)
    assert len(attributes) <= 10
    payload = decode_body(message["Body"], attributes.get(ENCODING, ""))
    return received_from(payload, json.loads(attributes[HEADERS]))
