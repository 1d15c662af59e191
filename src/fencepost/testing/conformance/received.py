"""What arrived at a destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from fencepost.publishers import headers as names


@dataclass(frozen=True, slots=True)
class Received:
    """What arrived at the destination, decoded by the destination's documented rule."""

    message_id: UUID
    event_type: str
    key: str | None
    attempt: int
    token: int
    payload: bytes
    content_type: str
    replay_of: str | None
    headers: Mapping[str, str]
    """The headers of the message, without the publisher's own."""


def received_from(payload: bytes, headers: Mapping[str, str]) -> Received:
    """Decode what a publisher sent that uses `fencepost.publishers.headers`.

    Args:
        payload: the body.
        headers: all headers as they arrived, in any case (HTTP). Those of reserved names are the publisher's.
    """
    own = {name.lower(): value for name, value in headers.items()}
    user = {
        name: value if name.lower() in names.TRACE_HEADERS else names.decode_value(value)
        for name, value in headers.items()
        if not names.is_reserved(name)
    }
    return Received(
        message_id=UUID(own[names.MESSAGE_ID.lower()]),
        event_type=names.decode_value(own[names.EVENT_TYPE.lower()]),
        key=_decoded(own.get(names.KEY.lower())),
        attempt=int(own[names.ATTEMPT.lower()]),
        token=int(own[names.TOKEN.lower()]),
        payload=payload,
        content_type=names.decode_value(own[names.CONTENT_TYPE.lower()]),
        replay_of=_decoded(own.get(names.REPLAY_OF.lower())),
        headers=user,
    )


def _decoded(value: str | None) -> str | None:
    return None if value is None else names.decode_value(value)
