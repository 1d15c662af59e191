"""The real servers that targets need, each started when it is first asked for and stopped at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from tests.postgres import fresh_database, pg18_bin_dir, running_server
from tests.publishers.moto_server import MotoServer

from fencepost import Outbox
from fencepost.embedded import PostgresServer


class Places:
    """Servers and folders of one run.

    Args:
        stack: closes them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self._databases: dict[str, str] = {}
        self._folder: Path | None = None
        self._server: PostgresServer | None = None
        self._moto: MotoServer | None = None

    @property
    def folder(self) -> Path:
        """A folder of this run's own."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
            self.stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def database(self, name: str) -> str:
        """Return the address of a migrated database, the same one for the same name."""
        if name not in self._databases:
            url = self.stack.enter_context(fresh_database(self._postgres()))
            with psycopg.connect(url) as conn:
                Outbox().migrate(conn)
            self._databases[name] = url
        return self._databases[name]

    def _postgres(self) -> PostgresServer:
        if self._server is None:
            self._server = self.stack.enter_context(running_server(pg18_bin_dir()))
        return self._server

    def moto(self) -> MotoServer:
        """Return what stands in for AWS."""
        if self._moto is None:
            (self.folder / "moto").mkdir()
            self._moto = self.stack.enter_context(MotoServer(self.folder / "moto"))
        return self._moto

    def use(self, server: PostgresServer) -> None:
        """Take databases from a server that runs already."""
        self._server = server


@contextmanager
def places() -> Iterator[Places]:
    """Have places until the end of the block."""
    with ExitStack() as stack:
        yield Places(stack)
