"""Publishers in use by a test: opened and closed in time, and everything that they show."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from fencepost.errors import PublishFailure
from fencepost.publishers.base import DestinationPublisher
from fencepost.testing import sample_delivery, sample_message

AnyPublisher = TypeVar("AnyPublisher", bound=DestinationPublisher)


@asynccontextmanager
async def in_use(publisher: AnyPublisher, *, closes_in: float = 1.0) -> AsyncIterator[AnyPublisher]:
    """Open a publisher and close it at the end, which must not take more seconds, whatever is in flight."""
    await publisher.open()
    try:
        yield publisher
    finally:
        started = time.monotonic()
        await publisher.close()
        assert time.monotonic() - started < closes_in


class Shown:
    """What a test makes publishers show: ``repr``, failures with their tracebacks, logs, output."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        caplog.set_level(logging.DEBUG)
        self._caplog, self._capfd = caplog, capfd
        self._texts: list[str] = []

    async def publish(
        self, publisher: DestinationPublisher, event_type: str = "order.created"
    ) -> PublishFailure | None:
        """Publish a message; return how that failed."""
        self._texts.append(repr(publisher))
        try:
            await publisher.publish(sample_message(event_type), sample_delivery())
        except PublishFailure as failure:
            self._texts += [str(failure), *traceback.format_exception(failure)]
            return failure
        return None

    def everything(self) -> str:
        """Return what was shown until now."""
        return "\n".join([*self._texts, self._caplog.text, *self._capfd.readouterr()])
