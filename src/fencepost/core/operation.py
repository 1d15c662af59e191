"""Operations: what is asked of a database, written once for sync and async connections.

An operation is a generator that yields `Statement`s, is sent the `Rows` of each, and returns its result.
It never touches a connection, so a test can stop it between any two statements. A statement that fails raises
its error at its ``yield``.
(The model is psycopg's own ``generators.py``; the idea is known as *sans-I/O*.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement: the name of its file, its text with ``%(name)s`` parameters, and their values.

    The text holds one statement, and no percent sign but those of its parameters.
    """

    name: str
    sql: str
    params: Mapping[str, Any] = field(default_factory=dict)


Operation = Generator[Statement, Rows, T]


def run(operation: Operation[T], execute: Callable[[Statement], Rows]) -> T:
    """Run an operation to its result over a function that sends one statement and returns its rows."""
    try:
        statement = next(operation)
        while True:
            try:
                rows = execute(statement)
            except Exception as error:  # noqa: BLE001 - it goes on to whoever asked
                statement = operation.throw(error)
            else:
                statement = operation.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()


async def arun(operation: Operation[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    """Run an operation to its result over an async function; the twin of `run`."""
    try:
        statement = next(operation)
        while True:
            try:
                rows = await execute(statement)
            except Exception as error:  # noqa: BLE001 - it goes on to whoever asked
                statement = operation.throw(error)
            else:
                statement = operation.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()
