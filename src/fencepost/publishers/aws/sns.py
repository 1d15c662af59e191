"""``sns://`` - publishes to an Amazon SNS topic, standard or FIFO; its answer for each message means delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fencepost.errors import ConfigError
from fencepost.publishers.aws.address import OPTIONS
from fencepost.publishers.aws.base import AwsPublisher

__all__ = ["OPTIONS", "SnsPublisher"]

DEFAULT_MAX_BYTES = 262_144
"""Of a topic whose ``MaximumMessageSize`` nobody has raised (API documentation of PublishBatch)."""


class SnsPublisher(AwsPublisher):
    """Publishes with PublishBatch.

    Args:
        url: ``sns://region/account/topic`` with any of the options of docs/destinations/sns.md.

    Raises:
        ConfigError: aiobotocore is not installed, or the URL cannot work.
    """

    service: ClassVar[str] = "sns"
    noun: ClassVar[str] = "topic"
    body_name: ClassVar[str] = "Message"
    default_max_bytes: ClassVar[int] = DEFAULT_MAX_BYTES
    name_pattern: ClassVar[str] = r"[A-Za-z0-9_-]{1,256}|[A-Za-z0-9_-]{1,251}\.fifo"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if self.place.account is None:
            raise ConfigError(f"{self._shown}: name the account, like sns://region/123456789012/topic")

    async def _find(self, client: Any, session: Any) -> str:
        partition = client.meta.partition or "aws"
        return f"arn:{partition}:sns:{self.place.region}:{self.place.account}:{self.place.name}"

    async def _send(self, client: Any, target: str, entries: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await client.publish_batch(TopicArn=target, PublishBatchRequestEntries=entries)
        return answer
