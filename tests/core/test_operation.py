"""The two runners: the same operation, the same statements, the same result."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.core.operation import Operation, Rows, Statement, arun, run


def adding(closed: list[bool]) -> Operation[int]:
    try:
        first = yield Statement("one", "SELECT 1")
        second = yield Statement("two", "SELECT 2", {"x": first[0][0]})
        return int(first[0][0] + second[0][0])
    finally:
        closed.append(True)


def answer(statement: Statement) -> Rows:
    return [(1 if statement.name == "one" else statement.params["x"] + 1,)]


async def aanswer(statement: Statement) -> Rows:
    await asyncio.sleep(0)
    return answer(statement)


async def test_both_runners_send_the_rows_and_return_the_result() -> None:
    assert run(adding([]), answer) == await arun(adding([]), aanswer) == 3


async def test_an_operation_is_closed_when_its_statement_fails() -> None:
    closed: list[bool] = []

    def fail(statement: Statement) -> Rows:
        raise ConnectionError

    async def afail(statement: Statement) -> Rows:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(adding(closed), fail)
    with pytest.raises(ConnectionError):
        await arun(adding(closed), afail)
    assert closed == [True, True]


async def test_an_operation_may_answer_for_a_statement_that_fails() -> None:
    def careful() -> Operation[str]:
        try:
            yield Statement("one", "SELECT 1")
        except ConnectionError:
            rows = yield Statement("two", "SELECT 2", {"x": 1})
            return f"instead {rows[0][0]}"
        return "never"

    def fail_first(statement: Statement) -> Rows:
        if statement.name == "one":
            raise ConnectionError
        return answer(statement)

    async def afail_first(statement: Statement) -> Rows:
        return fail_first(statement)

    assert run(careful(), fail_first) == await arun(careful(), afail_first) == "instead 2"
