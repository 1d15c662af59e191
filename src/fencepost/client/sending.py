"""How operations are sent: over the caller's sync connection, or over an async one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

from fencepost.core.operation import Operation, arun, run
from fencepost.drivers import async_driver_for, driver_for, refuse_autocommit
from fencepost.store.catalog import Catalog

T = TypeVar("T")


class OnTables(ABC):
    """What is about the tables of one installation."""

    __slots__ = ()

    allow_autocommit: bool

    @property
    @abstractmethod
    def catalog(self) -> Catalog:
        """The SQL of the tables."""


class OnSync(OnTables):
    """Sends operations over a sync connection."""

    __slots__ = ()

    def _run(self, conn: Any, operation: Operation[T]) -> T:
        return run(operation, driver_for(conn).execute)

    def _refuse_autocommit(self, conn: Any, why: str) -> None:
        if not self.allow_autocommit and driver_for(conn).commits_alone():
            raise refuse_autocommit(why, type(self).__name__)


class OnAsync(OnTables):
    """Sends operations over an async connection; the twin of `OnSync`."""

    __slots__ = ()

    async def _run(self, conn: Any, operation: Operation[T]) -> T:
        return await arun(operation, async_driver_for(conn).execute)

    async def _refuse_autocommit(self, conn: Any, why: str) -> None:
        if not self.allow_autocommit and await async_driver_for(conn).commits_alone():
            raise refuse_autocommit(why, type(self).__name__)
