"""One run of the program: what every command shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from fencepost.cli.output import Output
from fencepost.cli.redaction import Redactor
from fencepost.client.jobs import Jobs
from fencepost.client.outbox import Outbox
from fencepost.config import Settings
from fencepost.embedded import open_store

if TYPE_CHECKING:
    import psycopg

CONNECT_SECONDS = 10


@dataclass(slots=True)
class Invocation:
    """The secrets to mask, where to print, and whether tracebacks are wanted."""

    debug: bool = False
    redact: Redactor = field(default_factory=Redactor)
    settings: Settings | None = None
    """What the command was given, once it is read; errors name it."""
    leave: Callable[[int], NoReturn] | None = None
    """How to end the process, from a command after which it must not wait for threads."""

    @property
    def out(self) -> Output:
        """Where to print."""
        return Output(self.redact)

    @contextmanager
    def store_url(self, settings: Settings) -> Iterator[str]:
        """Open the configured store and yield the address to connect to.

        Raises:
            ConfigError: none is configured.
            EmbeddedError: the embedded server cannot be started.
        """
        with open_store(settings.required_store()) as url:
            self.redact.learn_store(url)
            yield url

    @contextmanager
    def connected(self, settings: Settings, role: str) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection to the configured store, in no transaction yet; what is not committed is lost.

        Raises:
            psycopg.Error: the database cannot be reached or refuses us.
        """
        with self.store_url(settings) as url, connect(url, role) as connection:
            yield connection


@contextmanager
def connect(url: str, role: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a READ COMMITTED connection that gives up where the server does not answer."""
    # Here and not above: without libpq psycopg cannot be imported, and `fencepost --help` has to work.
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    defaults: dict[str, Any] = {
        "application_name": f"fencepost {role}",
        "client_encoding": "UTF8",
        "connect_timeout": CONNECT_SECONDS,
    }
    connection = psycopg.connect(url, **{key: value for key, value in defaults.items() if key not in given})
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = None  # behind a pooler the session is somebody else's next
        yield connection
    finally:
        connection.close()


def outbox_of(settings: Settings) -> Outbox:
    """Return the outbox at the configured place."""
    return Outbox(schema_name=settings.schema, table=settings.table)


def jobs_of(settings: Settings) -> Jobs:
    """Return the jobs at the configured place, without any task."""
    return Jobs(schema_name=settings.schema, table=settings.table)
