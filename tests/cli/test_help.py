"""The program's help, and what it says to a wrong command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from fencepost.cli.app import cli
from fencepost.cli.exits import MEANINGS
from tests.cli.program import Result

Call = Callable[..., Result]
PAGE = Path(__file__).parents[2].joinpath("docs", "cli.md").read_text("utf-8")


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, also those of groups, with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands())


def test_the_help_has_the_exit_codes(call: Call) -> None:
    result = call("--help")
    assert result.code == 0
    for code, text in MEANINGS.items():
        assert f"  {code:<4} {text}" in result.out
        assert f"| {code} | {text} |" in PAGE


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_is_documented(call: Call, words: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        result = call(*words, flag)
        assert (result.code, result.err) == (0, "")
        assert f"Usage: fencepost {' '.join(words)}" in result.out
    assert re.search(rf"`{' '.join(words)}\b", PAGE)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_takes_debug_and_those_on_a_database_a_store(words: tuple[str, ...]) -> None:
    flags = {flag for parameter in COMMANDS[words].params for flag in parameter.opts}
    assert "--debug" in flags
    assert words[0] == "bench" or "--store" in flags  # which brings a server of its own


def test_the_version(call: Call) -> None:
    assert call("--version") == Result(0, f"fencepost {version('fencepost')}\n", "")


@pytest.mark.parametrize("arguments", [(), ("dead",), ("config",)])
def test_a_group_without_a_command_shows_its_help(call: Call, arguments: tuple[str, ...]) -> None:
    result = call(*arguments)
    assert result.code in (0, 2)  # newer versions of click call it wrong usage
    assert "Commands:" in result.out + result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch",), "No such command 'nosuch'"),
        (("status", "--nosuch"), "--nosuch"),
        (("purge",), "Missing option '--older-than'"),
        (("purge", "--older-than", "soon"), "expected a duration such as 10s"),
        (("dead", "show"), "Missing argument 'ID'"),
        (("dead", "show", "x"), "neither a message's id (a number) nor its message id (a UUID)"),
        (("dead", "list", "--outcome", "tired"), "'tired' is not one of"),
        (("dead", "retry", "9" * 20), "is no id"),
        (("dead", "retry"), "say which messages to retry: their ids, or --all"),
        (("dead", "skip", "1", "--all"), "say which messages to skip: their ids, or --all"),
        (("dead", "retry", "1", "--queue", "x"), "go with --all, not with ids"),
        (("queue", "set", "mail"), "say what to change, such as --weight 3"),
        (("keys", "--after", "x"), "requires 2 arguments"),
        (("migrate", "--sql", "--check"), "exclude each other"),
        (("dispatch", "--to", "stdout:", "--publisher", "a:b"), "exclude each other"),
        (("dispatch", "--to", "nowhere"), "--to: 'nowhere' is not a destination URL"),
        (("dispatch", "--publisher", "shop"), "--publisher: expected MODULE:OBJECT"),
        (("status", "--watch", "often"), "--watch: expected a duration"),
        (("status",), "store: no database is given: pass --store"),
        (("status", "--schema", "1"), "schema (flag --schema): '1' is not usable as a name"),
    ],
)
def test_wrong_usage_is_one_line_and_exits_2(call: Call, arguments: tuple[str, ...], says: str) -> None:
    result = call(*arguments)
    assert (result.code, result.out) == (2, "")
    line = result.err.splitlines()[-1]
    assert line.startswith("fencepost: error: ")
    assert says in line
    assert "Traceback" not in result.err


def test_debug_shows_the_traceback(call: Call) -> None:
    assert "Traceback" in call("status", "--debug").err
    assert "Traceback" in call("--debug", "status").err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_number_has_a_range(words: tuple[str, ...]) -> None:
    for parameter in COMMANDS[words].params:
        if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
            assert isinstance(parameter.type, click.IntRange | click.FloatRange), parameter.name
            assert parameter.type.min is not None
            assert parameter.type.max is not None
            assert parameter.type.max < 2**63
