"""A database with the tables and one for effects, and what a broker would see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost.consumers import Incoming, Received, received_from
from fencepost.embedded import PostgresServer
from tests.consumers.kinds import KINDS, Kind
from tests.publishers.rabbitmq_server import RabbitServer
from tests.store.databases import Migrated, migrated_database


class Effects:
    """What consumers made, as another session sees it: committed rows only."""

    def __init__(self, url: str, conn: psycopg.Connection[Any]) -> None:
        self.url, self.conn = url, conn

    def made(self) -> list[str]:
        return [row[0] for row in self.conn.execute("SELECT message_id FROM effect ORDER BY 1").fetchall()]

    def accepted(self) -> int:
        row = self.conn.execute("SELECT count(*) FROM outbox_inbox").fetchone()
        assert row is not None
        return int(row[0])


class Broker:
    """Counts what it is told of one message, and what was committed by then."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.told: list[tuple[str, int]] = []
        self.fails = False

    def incoming(self, message_id: str = "m", *, is_async: bool, **headers: str) -> Incoming:
        received = message(message_id, **headers)
        if not is_async:
            return Incoming(received, lambda: self._tell("ack"), lambda: self._tell("nack"))

        async def ack() -> None:
            self._tell("ack")

        async def nack() -> None:
            self._tell("nack")

        return Incoming(received, ack, nack)

    def _tell(self, what: str) -> None:
        self.told.append((what, len(self._effects.made())))
        if self.fails:
            raise ConnectionError("the broker is gone")


def message(message_id: str = "m", body: bytes = b"{}", /, **headers: str) -> Received:
    named = {f"Fencepost-{name.replace('_', '-')}": value for name, value in headers.items()}
    return received_from({"Fencepost-Message-Id": message_id, **named}, body)


@pytest.fixture(scope="package")
def migrated(postgres18: PostgresServer) -> Iterator[Migrated]:
    with migrated_database(postgres18) as found:
        found.janitor.execute("CREATE TABLE effect (message_id text NOT NULL)")
        yield found


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A RabbitMQ broker for all tests of the session: it takes seconds to start."""
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def effects(migrated: Migrated) -> Effects:
    migrated.empty()
    migrated.janitor.execute("DELETE FROM effect")
    return Effects(migrated.url, migrated.janitor)


@pytest.fixture
def broker(effects: Effects) -> Broker:
    return Broker(effects)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found
