"""Redis streams, by redis-py: ``handle(redis.incoming(client, stream, group, entry_id, fields))``.

After the commit the entry is acknowledged (XACK). After an error it stays pending with this consumer: read with
the id ``0`` what a consumer of this name has not acknowledged, and take over what others left with XAUTOCLAIM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from
from fencepost.errors import InvalidMessage

PAYLOAD_FIELDS = ("payload", b"payload")


def received(fields: Mapping[Any, Any] | None) -> Received:
    """Read the fields of an entry, decoded by the client or not.

    Raises:
        InvalidMessage: see `received_from`; the entry was deleted, or has no field ``payload``.
    """
    if not fields:
        raise InvalidMessage("the entry was deleted or trimmed from its stream before anybody took it in")
    payloads = [value for name, value in fields.items() if name in PAYLOAD_FIELDS]
    if len(payloads) != 1:
        raise InvalidMessage("the entry has no field 'payload': fencepost did not append it")
    body = payloads[0].encode("utf-8", "surrogateescape") if isinstance(payloads[0], str) else payloads[0]
    return received_from({name: value for name, value in fields.items() if name not in PAYLOAD_FIELDS}, body)


def incoming(
    client: Any, stream: str | bytes, group: str | bytes, entry_id: str | bytes, fields: Mapping[Any, Any] | None
) -> Incoming:
    """Return an entry that XREADGROUP or XAUTOCLAIM returned.

    Args:
        client: a `redis.Redis` or a `redis.asyncio.Redis`.
        stream: where it was read.
        group: for which it was read.
        entry_id: its id.
        fields: its fields.

    Raises:
        InvalidMessage: see `received`. XACK gives it up.
    """
    return Incoming(received(fields), lambda: client.xack(stream, group, entry_id))
