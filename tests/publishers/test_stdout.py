"""The JSON lines of the stdout publisher, and readers that stop, stall or vanish."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Retryable
from fencepost.publishers.stdout import StdoutPublisher, json_line
from fencepost.testing import sample_delivery, sample_message

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
        os.set_blocking(self.reader, False)

    def fill(self) -> None:
        os.write(self.writer, b"\n" * select.PIPE_BUF)

    def read(self) -> bytes:
        try:
            return os.read(self.reader, 1_000_000)
        except BlockingIOError:
            return b""

    def close_reader(self) -> None:
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close_reader()
    os.close(pipe.writer)


def test_the_line() -> None:
    message = sample_message("order.paid", b'{"b": 1.00, "a": 2}', aggregate_id="42", headers={"tenant": "a"})
    line = json_line(message, sample_delivery(attempt=2, token=3))
    assert line.endswith(b', "payload": {"b": 1.00, "a": 2}}\n'), (
        "the stored text itself, not parsed and rewritten"
    )
    fields = json.loads(line)
    headers = fields.pop("headers")
    assert fields == {
        "message_id": str(message.message_id),
        "event_type": "order.paid",
        "key": "42",
        "attempt": 2,
        "token": 3,
        "payload": {"b": 1.0, "a": 2},
    }
    assert headers["tenant"] == "a"
    assert headers["Fencepost-Token"] == "3"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"NaN",
        b"[Infinity]",
        b"{",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'"a\nb"',
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_not_strict_json_travels_as_base64(payload: bytes) -> None:
    fields = json.loads(json_line(sample_message(payload=payload), sample_delivery()))
    assert base64.b64decode(fields["payload_base64"]) == payload
    assert "payload" not in fields


@given(json_values, st.integers(min_value=0, max_value=4))
def test_any_json_is_one_line_with_the_same_meaning(value: object, indent: int) -> None:
    payload = json.dumps(value, indent=indent or None, ensure_ascii=indent % 2 == 0).encode("utf-8", "replace")
    line = json_line(sample_message(payload=payload.replace(b"\n", b"\r\n")), sample_delivery())
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line)["payload"] == json.loads(payload)


@given(st.binary())
def test_any_bytes_are_one_line_that_parses(payload: bytes) -> None:
    line = json_line(sample_message(payload=payload), sample_delivery())
    assert line.count(b"\n") == 1
    assert json.loads(line)


async def test_lines_longer_than_the_pipe_stay_whole_although_many_write(pipe: Pipe) -> None:
    arrived = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.reader, lambda: arrived.extend(pipe.read()))
    publisher = StdoutPublisher(fd=pipe.writer)
    messages = [sample_message(payload=json.dumps("x" * 10_000).encode(), id=number) for number in range(10)]
    await asyncio.gather(*(publisher.publish(message, sample_delivery()) for message in messages))
    arrived.extend(pipe.read())
    loop.remove_reader(pipe.reader)
    await publisher.close()
    lines = bytes(arrived).splitlines()
    sequences = [json.loads(line)["headers"]["Fencepost-Sequence"] for line in lines]
    assert sequences == [str(number) for number in range(10)], "whole, and in the order of the calls"


async def test_a_broken_pipe_is_retryable(pipe: Pipe) -> None:
    pipe.close_reader()
    publisher = StdoutPublisher(fd=pipe.writer)
    with pytest.raises(Retryable, match="broken pipe"):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()


async def test_a_full_device_is_retryable() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    publisher = StdoutPublisher(fd=fd)
    with pytest.raises(Retryable, match="No space left"):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    os.close(fd)


async def test_a_descriptor_that_is_not_open_is_retryable(pipe: Pipe) -> None:
    spare = os.dup(pipe.writer)
    os.close(spare)
    publisher = StdoutPublisher(fd=spare)
    with pytest.raises(Retryable, match="cannot write to stdout"):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()


async def test_a_stuck_reader_holds_neither_the_event_loop_nor_the_close(pipe: Pipe) -> None:
    pipe.fill()
    publisher = StdoutPublisher("stdout:?timeout=0.3", fd=pipe.writer)
    started = time.monotonic()
    publishes = [publisher.publish(sample_message(), sample_delivery()) for _ in range(50)]
    results = await asyncio.gather(*publishes, return_exceptions=True)
    await publisher.close()
    assert time.monotonic() - started < 1.3
    assert all(isinstance(result, Retryable) for result in results)
    assert pipe.read().strip() == b"", "nothing is written after its publish was reported as failed"


async def test_a_line_cut_by_a_stuck_reader_spoils_no_other(pipe: Pipe) -> None:
    publisher = StdoutPublisher("stdout:?timeout=0.2", fd=pipe.writer)
    with pytest.raises(Retryable):
        await publisher.publish(sample_message(payload=b'"' + b"x" * 10_000 + b'"'), sample_delivery())
    half = pipe.read()
    assert b"\n" not in half
    assert half.startswith(b"{")
    message = sample_message()
    await publisher.publish(message, sample_delivery())
    empty, whole = pipe.read().splitlines()
    assert empty == b"", "ends the half line"
    assert json.loads(whole)["message_id"] == str(message.message_id)
    await publisher.publish(message, sample_delivery())
    assert pipe.read().count(b"\n") == 1
    await publisher.close()


async def test_a_regular_file(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    publisher = StdoutPublisher(fd=fd)
    for _ in range(3):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    os.close(fd)
    assert len((tmp_path / "out").read_text().splitlines()) == 3


async def test_standard_output_is_the_default(capfd: pytest.CaptureFixture[str]) -> None:
    publisher = StdoutPublisher()
    message = sample_message()
    await publisher.publish(message, sample_delivery())
    await publisher.close()
    assert json.loads(capfd.readouterr().out)["message_id"] == str(message.message_id)
