"""Where a demonstration plays: a temporary server of its own, or the store that the user named."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psycopg

from fencepost.demo.programs import Program
from fencepost.demo.tables import hold_the_stage, make_schema
from fencepost.embedded import open_store
from fencepost.embedded.preparation import refuse_other_systems
from fencepost.errors import EmbeddedError, FencepostError

TEMPORARY = ""


@contextmanager
def stage(address: str) -> Iterator[str]:
    """Open the store, make the schema anew and give the database's URL for the length of the block.

    Raises:
        FencepostError: the store cannot be used; errors of psycopg are passed on as they are.
    """
    with _store(address) as url, psycopg.connect(url, autocommit=True) as connection:
        hold_the_stage(connection)
        make_schema(connection)
        yield url


@contextmanager
def _store(address: str) -> Iterator[str]:
    if address == TEMPORARY:
        refuse_other_systems()
        # It must not be cut short: it has a server to stop and a directory to remove.
        with Program("temporary_server", "the temporary server", {}, end_seconds=90) as server:
            yield _url_of(server)
    else:
        with open_store(address) as url:
            yield url


def _url_of(server: Program) -> str:
    try:
        url: str = server.expect("ready", seconds=90)["url"]
    except FencepostError as error:
        raise EmbeddedError(str(error)) from error
    return url


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that whatever was started is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
