"""Messages and deliveries for tests of publishers, without a database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID, uuid4

from fencepost.core.records import Message
from fencepost.publishers.base import Delivery


def sample_message(
    event_type: str = "order.created",
    payload: bytes = b'{"id": 42}',
    *,
    id: int = 1,  # noqa: A002 - the record's own name
    message_id: UUID | None = None,
    queue: str = "default",
    aggregate_type: str | None = "order",
    aggregate_id: str | None = "42",
    ordering_key: str | None = None,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
    key_sequence: int | None = None,
) -> Message:
    """Return a message as the dispatcher would hand it over; its message id is new unless given."""
    return Message(
        id=id,
        message_id=message_id or uuid4(),
        queue=queue,
        event_type=event_type,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        ordering_key=ordering_key,
        payload=payload,
        content_type=content_type,
        headers=headers or {},
        created_at=datetime.now(UTC),
        key_sequence=key_sequence,
    )


def sample_delivery(
    *, attempt: int = 1, max_attempts: int = 12, token: int = 1, lease: float = 60.0, replay_of: str | None = None
) -> Delivery:
    """Return a delivery whose lease ends ``lease`` seconds from now, on the real monotonic clock."""
    ends = time.monotonic() + lease
    return Delivery(
        attempt=attempt,
        max_attempts=max_attempts,
        token=token,
        remaining=lambda: ends - time.monotonic(),
        replay_of=replay_of,
    )
