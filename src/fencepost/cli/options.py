"""Flags that are settings: made from the table of settings, read together with the file and the environment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from fencepost.cli.invocation import Invocation
from fencepost.cli.settings import BY_NAME, Setting, load_settings
from fencepost.cli.settings.durations import parse_duration
from fencepost.cli.settings.kinds import YES_NO
from fencepost.config import Settings

Command = Callable[..., Any]
Complete = Callable[[dict[str, Any], dict[str, Any]], None]
C = TypeVar("C", bound=Command)

STORE = ("store", "schema", "table")


def takes_settings(*names: str, complete: Complete | None = None, own: str = "") -> Callable[[Command], Command]:
    """Give a command the flags of some settings, ``--config`` and ``--debug``.

    The command is called with the invocation and with the settings before its own parameters.

    Args:
        names: the settings that can be given as flags; all others can come from elsewhere as ever.
        complete: moves what the command's own flags say about settings from the second dictionary (by
            parameter) to the first (by setting).
        own: the prefix of settings that are this command's own: their flags are known without it as well.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(invocation: Invocation, flags: dict[str, Any], config: str | None, **given: Any) -> Any:
            if complete is not None:
                complete(flags, given)
            return command(invocation, read_settings(invocation, flags, config), **given)

        return takes_flags(*names, own=own)(wrapped)

    return decorate


def takes_flags(*names: str, own: str = "") -> Callable[[Command], Command]:
    """Give a command the same flags, but unread: it is called with the invocation, the flags and the file."""

    def decorate(command: Command) -> Command:
        @click.option("--config", metavar="FILE", help="Read this instead of fencepost.toml.  [FENCEPOST_CONFIG]")
        @debug_option
        @click.pass_obj
        @functools.wraps(command)
        def wrapped(invocation: Invocation, /, config: str | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in names}
            return command(invocation, flags, config, **given)

        for name in reversed(names):
            wrapped = _option(BY_NAME[name], own)(wrapped)
        return wrapped

    return decorate


def read_settings(invocation: Invocation, flags: dict[str, object], config: str | None) -> Settings:
    """Load the settings of a command, and learn what must not be shown of them."""
    settings = load_settings(flags, config=config)
    invocation.redact.learn(settings)
    invocation.settings = settings
    return settings


def _option(setting: Setting, own: str) -> Callable[[C], C]:
    shown = "" if setting.default in (None, ()) else f"  (default {setting.kind.show(setting.default)})"
    text = f"{setting.help[0].upper()}{setting.help[1:]}{shown}.  [{setting.variable}]"
    if setting.kind is YES_NO:
        declaration = f"{setting.option}/--no-{setting.option.removeprefix('--')}"
        return click.option(declaration, setting.name, default=None, help=text)
    many = setting.kind.from_texts is not None
    options = [setting.option]
    if own and setting.name.startswith(own):
        options.insert(0, f"--{setting.option.removeprefix('--').removeprefix(own.replace('_', '-'))}")
    return click.option(*options, setting.name, multiple=many, metavar=setting.kind.metavar, help=text)


def _want_tracebacks(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.obj.debug = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_want_tracebacks, help="Show tracebacks of errors."
)


def as_duration(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    """Read an option that is a duration, such as ``7d``."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
