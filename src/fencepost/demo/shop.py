"""The shop: commits each order and its event in one transaction. Some transactions and savepoints roll back."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg

from fencepost import JsonText, Outbox
from fencepost.demo.sabotage import TWO_TRANSACTIONS, sabotaged
from fencepost.demo.tables import SCHEMA, outbox

TILLS = 2
PAUSE = 0.05
"""Seconds between two orders of one till: a pace at which one can watch."""

ROLLED_BACK_EVERY = 8
GIFT_CHANGED_EVERY = 5

_CLOSE_SECONDS = 5.0
"""How long to wait for a till when something has gone wrong: the database may be what went."""

_CUSTOMERS = ("Ada", "Zoë", "Ørjan", "Łukasz", "Νίκη", "美咲")

Enqueue = Callable[[psycopg.Connection[Any], str, JsonText], UUID]


class Shop:
    """Some tills, each a thread with a connection of its own; they sell for the length of the ``with`` block."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._tills = [
            threading.Thread(target=self._work, args=(number,), name=f"till {number}", daemon=True)
            for number in range(TILLS)
        ]

    def __enter__(self) -> Self:
        for till in self._tills:
            till.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop selling, wait for the orders that are being written, and raise what went wrong at a till."""
        self._closing.set()
        for till in self._tills:
            till.join(None if error is None else _CLOSE_SECONDS)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise what went wrong at a till, if anything did."""
        if self._failure is not None:
            raise self._failure

    def _work(self, till: int) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True, application_name="fencepost demo shop") as connection:
                enqueue = _enqueue_apart(self._url) if sabotaged(TWO_TRANSACTIONS) else _enqueue
                number = till
                while not self._closing.wait(PAUSE):
                    _serve_customer(connection, number, enqueue)
                    number += TILLS
        except Exception as error:  # noqa: BLE001 - raised in the thread that asks for it
            self._failure = error


def _serve_customer(connection: psycopg.Connection[Any], number: int, enqueue: Enqueue) -> None:
    rolled_back: list[tuple[UUID, str]] = []
    with connection.transaction():
        ordered = _order(connection, number, enqueue)
        if number % GIFT_CHANGED_EVERY == 0:
            gift = _changed_gift(connection, number, enqueue)
            rolled_back.append((gift, "savepoint"))
        if number % ROLLED_BACK_EVERY == ROLLED_BACK_EVERY - 1:
            rolled_back.append((ordered, "transaction"))
            raise psycopg.Rollback  # the card was declined: the order, and what it would have announced
    for message_id, how in rolled_back:
        connection.execute("INSERT INTO fencepost_demo.rolled_back VALUES (%s, %s)", [message_id, how])


def _order(connection: psycopg.Connection[Any], number: int, enqueue: Enqueue) -> UUID:
    """Write one order and enqueue its event: together, in the caller's transaction."""
    customer = _CUSTOMERS[number % len(_CUSTOMERS)]
    payload = _payload(number, customer)
    message_id = enqueue(connection, "order.created", payload)
    connection.execute(
        "INSERT INTO fencepost_demo.orders (customer, message_id, event) VALUES (%s, %s, %s)",
        [customer, message_id, payload.encode()],
    )
    return message_id


def _changed_gift(connection: psycopg.Connection[Any], number: int, enqueue: Enqueue) -> UUID:
    """Add a gift inside a savepoint, and think better of it; the order around it stays."""
    with connection.transaction(force_rollback=True):
        return enqueue(connection, "gift.added", JsonText(json.dumps({"order": number})))


def _payload(number: int, customer: str) -> JsonText:
    """JSON that any parser would write in another way: wide blanks, a zero at the end, a key given twice."""
    euros = random.randint(5, 90)  # noqa: S311 - a price
    return JsonText(f'{{"order":  {number}, "for": "{customer} ☕", "total": {euros}.50, "gift": 0, "gift": 1}}')


def _enqueue(connection: psycopg.Connection[Any], event_type: str, payload: JsonText) -> UUID:
    return outbox().enqueue(connection, event_type, payload, message_id=uuid4()).message_id


def _enqueue_apart(url: str) -> Enqueue:
    """What an outbox is there to avoid: the event is committed whether or not its order is."""
    apart = psycopg.connect(url, autocommit=True, application_name="fencepost demo shop")
    careless = Outbox(schema_name=SCHEMA, allow_autocommit=True)

    def enqueue(_connection: psycopg.Connection[Any], event_type: str, payload: JsonText) -> UUID:
        return careless.enqueue(apart, event_type, payload).message_id

    return enqueue
