"""Reads the tables a few times a second for the live table. The verdict does not use any of this."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from fencepost.demo.board import Board
from fencepost.demo.programs import Program
from fencepost.demo.tables import outbox

_EVERY = 0.15

_OTHERS = """
    SELECT (SELECT count(*) FROM fencepost_demo.orders),
           (SELECT count(*) FROM fencepost_demo.rolled_back),
           (SELECT count(*) FROM fencepost_demo.arrival),
           (SELECT count(*) FROM fencepost_demo.receipt)
"""


@contextmanager
def watching(url: str, board: Board, workers: list[Program]) -> Iterator[None]:
    """Keep the board up to date for the length of the block, from a thread."""
    ending = threading.Event()
    thread = threading.Thread(target=_watch, args=(url, board, workers, ending), name="gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(timeout=5)


def _watch(url: str, board: Board, workers: list[Program], ending: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True, application_name="fencepost demo gauges") as connection:
        over = False
        while not over:
            over = ending.wait(_EVERY)  # and one last look, so that the final table is the final state
            _read_tables(connection, board)
            read_counters(board, workers)


def _read_tables(connection: psycopg.Connection[Any], board: Board) -> None:
    stats = outbox().stats(connection)
    board.pending, board.processing = stats.total("pending"), stats.total("processing")
    board.done, board.dead = stats.done, stats.total("dead")
    row = connection.execute(_OTHERS).fetchone()
    if row is not None:
        board.orders, board.rolled_back, board.received, board.distinct = row


def read_counters(board: Board, workers: list[Program]) -> None:
    """Take over what the workers last reported."""
    for worker in workers:
        counters = worker.last_report("counters")
        if counters is not None:
            view = board.workers[worker.name]
            view.claimed, view.delivered = counters["claimed"], counters["delivered"]
            view.lost_leases = counters["lost_leases"]
