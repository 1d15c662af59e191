"""What a consumer may take in, and what a repeat of it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from fencepost.core.number import checked_number
from fencepost.core.text import checked_text
from fencepost.errors import InvalidMessage, MessageConflict, SequenceGap

MAX_MESSAGE_ID_BYTES = 512
MAX_KEY_BYTES = 2048

Body = bytes | bytearray | memoryview
"""A message as it was received."""


class Acceptance(Enum):
    """What became of a message; true where its effect is to be made now."""

    ACCEPTED = "new: make its effect in this transaction"
    REPEAT = "its effect is there already"
    STALE = "its effect is there already, made under a newer fencing token"

    def __bool__(self) -> bool:
        return self is Acceptance.ACCEPTED


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A message as one consumer takes it in.

    Args:
        consumer: whose effect it is.
        message_id: the message's stable id.
        fence: the fencing token of this attempt, where there is one.
        digest: SHA-256 of the body, where it was given.
    """

    consumer: str
    message_id: str
    fence: int | None
    digest: bytes | None

    def judged(self, fence: int | None, digest: bytes | None) -> Acceptance:
        """Judge this repeat by the token and the digest that were accepted before.

        Raises:
            MessageConflict: that had another body.
        """
        if None not in (self.digest, digest) and self.digest != digest:
            raise MessageConflict(
                f"consumer {self.consumer!r} has accepted message {self.message_id!r} with another body: "
                "two messages have one id, or a body changed on its way; nothing was changed"
            )
        if self.fence is not None and fence is not None and self.fence < fence:
            return Acceptance.STALE
        return Acceptance.REPEAT


def entry(consumer: str, message_id: UUID | str, fence: int | None, body: Body | None) -> InboxEntry:
    """Check what a consumer got.

    Raises:
        InvalidMessage: what is wrong, with the argument and the limit named.
    """
    text = str(message_id) if isinstance(message_id, UUID) else message_id
    if body is not None and not isinstance(body, Body):
        raise InvalidMessage(f"body must be bytes, as they were received, not {type(body).__name__}")
    return InboxEntry(
        consumer,
        checked_text("message_id", text, MAX_MESSAGE_ID_BYTES),
        None if fence is None else checked_number("fence", fence, least=0),
        None if body is None else hashlib.sha256(_contiguous(body)).digest(),
    )


def _contiguous(body: Body) -> Body:
    """Return the bytes in one piece: hashes take no view with a stride."""
    return body.tobytes() if isinstance(body, memoryview) and not body.c_contiguous else body


def checked_key(value: object) -> str:
    """Return a key of 1 to 2048 bytes; see `checked_text`."""
    return checked_text("key", value, MAX_KEY_BYTES)


def judged_sequence(consumer: str, key: str, sequence: int, last: int | None, *, allow_gap: bool) -> Acceptance:
    """Judge the number of a key's message by the last one that was accepted, None where there was none.

    Raises:
        SequenceGap: numbers between the two have not come, and that was not allowed.
    """
    if last is not None and sequence <= last:
        return Acceptance.REPEAT
    if last is not None and sequence > last + 1 and not allow_gap:
        raise SequenceGap(consumer, key, expected=last + 1, received=sequence)
    return Acceptance.ACCEPTED
