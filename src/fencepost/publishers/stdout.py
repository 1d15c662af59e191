"""``stdout:`` - one JSON line a message on standard output, for trying things out and for log collectors.

Acknowledged means: the kernel took the whole line. A pipe whose reader went away, or reads nothing until the
deadline, is a retryable failure.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import select
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import parse_address
from fencepost.publishers.base import Delivery, DestinationPublisher, publish_budget
from fencepost.publishers.headers import outgoing_headers
from fencepost.publishers.json_text import is_strict_json

DEFAULT_TIMEOUT = 8.0
HUNG_WRITE = 0.15
"""Seconds past its deadline after which the writing thread is left to itself; less than the lease margin."""
STDOUT_FD = 1
STUCK = "stdout took no more bytes before the deadline: its reader does not read"

# A blocking write of at most PIPE_BUF bytes to a pipe that poll() calls writable does not block (POSIX, write()).
_CHUNK = select.PIPE_BUF


class StdoutPublisher(DestinationPublisher):
    """Writes each message as one line of JSON.

    Args:
        url: ``stdout:``, optionally with ``?timeout=SECONDS`` (default 8).
        fd: the file descriptor to write to; standard output unless a test says otherwise.

    Raises:
        ConfigError: the URL has a host, a path or an unknown option.
    """

    def __init__(self, url: str = "stdout:", *, fd: int = STDOUT_FD) -> None:
        super().__init__(url)
        address = parse_address(url, options={"timeout"})
        if address.hosts or address.path.strip("/"):
            raise ConfigError(f"{address.display}: write 'stdout:' alone; there is nothing to address")
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._fd = fd
        self._torn = False
        self._writer: ThreadPoolExecutor | None = None

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Write the line and return once the kernel took all of it.

        Raises:
            Retryable: the reader is gone or stuck, or the device is full.
            Permanent: a header name cannot be sent anywhere.
        """
        line = json_line(message, delivery)
        budget = publish_budget(delivery, self._timeout)
        deadline = time.monotonic() + budget
        if self._writer is None:
            # One thread of our own: lines stay whole and in order, and a stuck reader cannot use up the
            # event loop's shared threads, which resolve host names for everybody else.
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fencepost-stdout")
        written = asyncio.get_running_loop().run_in_executor(self._writer, self._write, line, deadline)
        try:
            # Only where the write itself hangs. The thread ends on its own otherwise, and is given the time to,
            # so that nothing is written any more once the failure is reported.
            async with asyncio.timeout(budget + HUNG_WRITE):
                await written
        except TimeoutError:
            raise Retryable(STUCK) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Retryable("not written: the publisher was closed") from None

    async def close(self) -> None:
        """Let the line that is being written end; lines that wait for it are given up."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.shutdown, cancel_futures=True)

    def _write(self, line: bytes, deadline: float) -> None:
        """Write one line; runs in the writer's thread only."""
        # A line that an earlier failure cut in half is closed first, so that only that one is unreadable.
        rest = memoryview(b"\n" + line if self._torn else line)
        whole = len(rest)
        try:
            while rest:
                self._await_writable(deadline)
                rest = rest[os.write(self._fd, rest[:_CHUNK]) :]
                # Not when the closing newline alone went out: then nothing of the new line is there yet.
                self._torn = len(rest) not in (0, len(line))
        except BlockingIOError:
            # Somebody made the descriptor non-blocking, and another process filled the pipe in between.
            raise Retryable(STUCK) from None
        except BrokenPipeError:
            raise Retryable("nobody reads stdout any more (broken pipe)", unavailable=True) from None
        except OSError as error:
            raise Retryable(f"cannot write to stdout: {error} ({whole - len(rest)} of {whole} bytes)") from error

    def _await_writable(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        left = deadline - time.monotonic()
        # Errors and hang-ups are reported as events too; the write that follows says which one it is.
        if left <= 0 or not poll.poll(left * 1_000):
            raise Retryable(STUCK)


def json_line(message: Message, delivery: Delivery) -> bytes:
    """Return the message as one line of JSON, its end of line included.

    The payload comes last: as ``payload``, the stored text itself, when it is strict UTF-8 JSON (line breaks
    between its values become blanks; they mean the same), otherwise as ``payload_base64``.

    Raises:
        Permanent: a header name cannot be sent anywhere.
    """
    key = message.ordering_key if message.ordering_key is not None else message.aggregate_id
    fields: dict[str, Any] = {
        "message_id": str(message.message_id),
        "event_type": message.event_type,
        "key": key,
        "attempt": delivery.attempt,
        "token": delivery.token,
        "headers": outgoing_headers(message, delivery),
    }
    payload = _embeddable(message.payload)
    if payload is None:
        fields["payload_base64"] = base64.b64encode(message.payload).decode("ascii")
        return json.dumps(fields).encode("ascii") + b"\n"
    return json.dumps(fields)[:-1].encode("ascii") + b', "payload": ' + payload + b"}\n"


def _embeddable(payload: bytes) -> bytes | None:
    """Return the payload on one line if it is strict JSON, without touching numbers, key order or spelling."""
    if not is_strict_json(payload):
        return None
    # Strict JSON has line ends only between its tokens: inside a string they are written as escapes.
    return payload.replace(b"\r", b" ").replace(b"\n", b" ")
