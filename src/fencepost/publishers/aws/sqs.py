"""``sqs://`` - sends to an Amazon SQS queue, standard or FIFO; SQS's answer for each message means delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fencepost.publishers.aws.address import OPTIONS
from fencepost.publishers.aws.base import LARGEST, AwsPublisher

__all__ = ["OPTIONS", "SqsPublisher"]


class SqsPublisher(AwsPublisher):
    """Sends with SendMessageBatch.

    Args:
        url: ``sqs://region/[account/]queue`` with any of the options of docs/destinations/sqs.md.

    Raises:
        ConfigError: aiobotocore is not installed, or the URL cannot work.
    """

    service: ClassVar[str] = "sqs"
    noun: ClassVar[str] = "queue"
    body_name: ClassVar[str] = "MessageBody"
    default_max_bytes: ClassVar[int] = LARGEST
    name_pattern: ClassVar[str] = r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo"

    async def _find(self, client: Any, session: Any) -> str:
        # Never put together by ourselves: AWS does not promise what a queue's URL looks like.
        account = {} if self.place.account is None else {"QueueOwnerAWSAccountId": self.place.account}
        answer = await client.get_queue_url(QueueName=self.place.name, **account)
        return str(answer["QueueUrl"])

    async def _send(self, client: Any, target: str, entries: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await client.send_message_batch(QueueUrl=target, Entries=entries)
        return answer
