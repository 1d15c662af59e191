"""I11: whatever is accepted at enqueue comes out of a claim byte for byte."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost import InvalidMessage, Outbox
from tests.client.conftest import Table

text = st.text(st.characters(codec=None))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    payload=values | st.binary(),
    event_type=text,
    aggregate=st.tuples(text, text),
    headers=st.dictionaries(text, text),
)
def test_what_is_accepted_is_delivered_byte_for_byte(
    table: Table, payload: Any, event_type: str, aggregate: tuple[str, str], headers: dict[str, str]
) -> None:
    outbox = Outbox()
    with psycopg.connect(table.url) as conn:
        try:
            outbox.enqueue(conn, event_type, payload, aggregate=aggregate, headers=headers)
        except InvalidMessage:
            # Refused before any database work: the transaction is as good as new.
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            return
        conn.commit()
        [claimed] = outbox.claim(conn, "w", lease=timedelta(seconds=60))
        message = claimed.message
        assert (message.event_type, message.aggregate_type, message.aggregate_id) == (event_type, *aggregate)
        assert dict(message.headers) == headers
        if isinstance(payload, bytes):
            assert message.payload == payload
        else:
            assert message.payload == json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
        assert outbox.mark_done(conn, claimed) == []
