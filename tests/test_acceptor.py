"""The tests' own TCP server leaves no connection behind, at whatever moment it is stopped."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from tests.acceptor import Acceptor


@pytest.mark.parametrize("turns", range(6))
async def test_stopped_while_connections_arrive_it_leaves_none(turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    acceptor = Acceptor(serve)
    await acceptor.start()
    asked = [asyncio.ensure_future(asyncio.open_connection("127.0.0.1", acceptor.port)) for _ in range(50)]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(turns):
        await asyncio.sleep(0)
    await acceptor.stop()
    for each in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(each, tuple):
            each[1].transport.abort()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(each.message) for each in said if issubclass(each.category, ResourceWarning)] == []
