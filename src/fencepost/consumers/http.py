"""Webhooks, in any web framework: ``handle(http.received(request.headers, body))``, then the answer.

The answer is the acknowledgement, and the framework sends it when the handler has returned: so there is no ``ack``
here. `status_after` says which one. Check the signature first (docs/destinations/http.md): who can reach the
address can send anything.
"""

from __future__ import annotations

from fencepost.consumers.received import HTTP_PREFIX, Headers, Received, received_from
from fencepost.errors import InvalidMessage, MessageConflict, SequenceGap

DONE = 204
REFUSED = 400
"""The sender gives the message up: it is dead there, for a person to see."""
CONFLICT = 409
"""As `REFUSED`."""
TOO_EARLY = 425
"""The sender tries again."""
FAILED = 500
"""The sender tries again."""


def received(headers: Headers, body: bytes) -> Received:
    """Read a request.

    Args:
        headers: a mapping or pairs, names in any case, such as ``request.headers`` of most frameworks.
        body: as it arrived.

    Raises:
        InvalidMessage: see `received_from`.
    """
    return received_from(headers, body, prefix=HTTP_PREFIX)


def status_after(error: BaseException | None) -> int:
    """Return the status to answer with where handling a message ended in this error; None: it ended well."""
    if error is None:
        return DONE
    if isinstance(error, InvalidMessage):
        return REFUSED
    if isinstance(error, MessageConflict):
        return CONFLICT
    return TOO_EARLY if isinstance(error, SequenceGap) else FAILED
