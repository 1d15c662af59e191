"""Whether a receiver takes a write under a fencing token, and what the token belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fencepost.core.number import checked_number
from fencepost.core.text import checked_text

MAX_RESOURCE_BYTES = 2048
MAX_ID_BYTES = 512


@dataclass(frozen=True, slots=True)
class Admission:
    """What a receiver answers to a write; true where it is to be made.

    Args:
        token: the fencing token of whoever wants to write.
        newest: the newest one that the receiver has seen of this resource, this one included.
    """

    token: int
    newest: int

    def __bool__(self) -> bool:
        return self.token >= self.newest


@dataclass(frozen=True, slots=True)
class Entrance:
    """A write as it comes to a receiver: to what, and under which token."""

    receiver: str
    resource: str
    token: int


def entrance(receiver: str, resource: str, token: int) -> Entrance:
    """Check what a write comes with.

    Raises:
        InvalidMessage: what is wrong, with the argument and the limit named.
    """
    return Entrance(
        receiver, checked_text("resource", resource, MAX_RESOURCE_BYTES), checked_number("token", token, least=0)
    )


def message_resource(message_id: UUID | str) -> str:
    """Return what a message's fencing tokens belong to: ``message:`` and its message id.

    Tokens are counted for each message and destination: those of two messages, of a message and its replay, or of
    one event in two destinations cannot be compared.

    Raises:
        InvalidMessage: no message can have this id.
    """
    return f"message:{_text('message_id', message_id)}"


def job_resource(job_id: UUID | str) -> str:
    """Return what the ``fence`` numbers of a job belong to: ``job:`` and its job id.

    Raises:
        InvalidMessage: no job can have this id.
    """
    return f"job:{_text('job_id', job_id)}"


def _text(name: str, value: UUID | str) -> str:
    return checked_text(name, str(value) if isinstance(value, UUID) else value, MAX_ID_BYTES)
