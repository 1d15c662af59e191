"""How a row becomes a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from uuid import UUID

from fencepost.core.draft import BYTES_CONTENT_TYPE, JSON_CONTENT_TYPE
from fencepost.core.operation import Row
from fencepost.core.records import Message, instant

MESSAGE_COLUMNS = 13
"""How many columns `message_columns.sql` selects; whatever a statement adds comes behind them."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def message_of(row: Row) -> Message:
    """Make a message of the columns that `message_columns.sql` selects."""
    payload, payload_bytes, content_type, headers = row[7:11]
    is_json = payload is not None
    return Message(
        id=row[0],
        message_id=UUID(row[1]),
        queue=row[2],
        event_type=row[3],
        aggregate_type=row[4],
        aggregate_id=row[5],
        ordering_key=row[6],
        payload=payload.encode("utf-8") if is_json else bytes(payload_bytes),
        content_type=content_type or (JSON_CONTENT_TYPE if is_json else BYTES_CONTENT_TYPE),
        headers=_NO_HEADERS if headers == "{}" else MappingProxyType(json.loads(headers)),
        created_at=instant(row[11]),
        key_sequence=row[12],
    )
