"""A worker, a program of its own: fencepost's dispatcher, publishing to the receiver over TCP."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from datetime import timedelta

import psycopg
from psycopg.conninfo import make_conninfo

from fencepost import Delivery, Dispatcher, FencepostError, Message, Retryable, Route
from fencepost.demo.lifeline import follow_parent, read_settings, report
from fencepost.demo.receiver import ANSWER
from fencepost.demo.sabotage import NO_FENCE, sabotaged
from fencepost.demo.tables import SCHEMA
from fencepost.demo.terms import LEASE, POLL, PUBLISH_TIMEOUT

AT_ONCE = 4
"""Messages in flight in one worker."""

REPORT_SECONDS = 0.1


def application_name(worker: str) -> str:
    """Return the name under which a worker's connections stand in ``pg_stat_activity``."""
    return f"fencepost demo {worker}"


class ReceiverPublisher:
    """Sends a message to the receiver and waits for its answer: that, and nothing else, means delivered."""

    def __init__(self, worker: str, port: int) -> None:
        self._worker, self._port = worker, port
        self.on_start: Callable[[], None] = _nothing

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.on_start()
        about = {
            "worker": self._worker,
            "message_id": str(message.message_id),
            "token": delivery.token,
            "size": len(message.payload),
        }
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(json.dumps(about).encode() + b"\n" + message.payload)
                answer = await reader.readline()
            finally:
                writer.close()
        except OSError as error:
            raise Retryable(f"the receiver cannot be reached: {error}") from error
        if answer != ANSWER:
            raise Retryable("the receiver hung up without an answer")


class FencelessPublisher(ReceiverPublisher):
    """For the tests: writes the result itself, whoever holds the row by then."""

    def __init__(self, worker: str, port: int, url: str) -> None:
        super().__init__(worker, port)
        self._url = url

    async def publish(self, message: Message, delivery: Delivery) -> None:
        try:
            await super().publish(message, delivery)
        finally:
            with psycopg.connect(self._url) as connection:
                connection.execute(
                    "UPDATE fencepost_demo.outbox SET status = 'done', outcome = 'delivered', lease_until = NULL,"
                    " done_at = statement_timestamp() WHERE id = %s",
                    [message.id],
                )


class _LogReports(logging.Handler):
    """Sends the dispatcher's log to the parent."""

    def emit(self, record: logging.LogRecord) -> None:
        report("log", level=record.levelno, logger=record.name, text=record.getMessage())


def _nothing() -> None:
    pass


def _dispatcher(name: str, url: str, port: int) -> Dispatcher:
    url = make_conninfo(url, application_name=application_name(name))
    publisher = FencelessPublisher(name, port, url) if sabotaged(NO_FENCE) else ReceiverPublisher(name, port)
    dispatcher = Dispatcher(
        url,
        [Route("*", publisher)],
        schema_name=SCHEMA,
        owner=name,
        batch=AT_ONCE,
        concurrency=AT_ONCE,
        lease=timedelta(seconds=LEASE),
        publish_timeout=timedelta(seconds=PUBLISH_TIMEOUT),
        poll_interval=timedelta(seconds=POLL),
        backoff_base=timedelta(seconds=0.2),
        backoff_cap=timedelta(seconds=1),
        grace=timedelta(seconds=5),
    )
    # Counters that trail behind would contradict what the receiver sees of a worker that is killed.
    publisher.on_start = lambda: _report_counters(dispatcher)
    return dispatcher


async def _run(name: str, url: str, port: int) -> bool:
    async with _dispatcher(name, url, port) as dispatcher:
        report("ready")
        reporting = asyncio.create_task(_report_now_and_then(dispatcher))
        drained = await dispatcher.run(exit_by_force=True)
        reporting.cancel()
        _report_counters(dispatcher)
        return drained


async def _report_now_and_then(dispatcher: Dispatcher) -> None:
    while True:
        _report_counters(dispatcher)
        await asyncio.sleep(REPORT_SECONDS)


def _report_counters(dispatcher: Dispatcher) -> None:
    report("counters", **dispatcher.counters.as_dict())


def main() -> None:
    name = sys.argv[1]
    settings = read_settings()
    follow_parent(lambda command: None)
    logging.getLogger("fencepost").addHandler(_LogReports())
    try:
        drained = asyncio.run(_run(name, settings["url"], settings["port"]))
    except FencepostError as error:
        report("failed", error=str(error))
        sys.exit(1)
    sys.exit(0 if drained else 1)


if __name__ == "__main__":
    main()
