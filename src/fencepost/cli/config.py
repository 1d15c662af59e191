"""``config``: the settings in force, where each comes from, and whether they work."""

from __future__ import annotations

from typing import Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation
from fencepost.cli.options import json_option, read_settings, takes_flags, takes_settings
from fencepost.cli.settings import SETTINGS, InvalidSettings
from fencepost.cli.targets import targets_of
from fencepost.config import Settings
from fencepost.errors import ConfigError

_ALL = tuple(setting.name for setting in SETTINGS)


@click.group()
def config() -> None:
    """Show or check the settings."""


@config.command()
@takes_settings(*_ALL)
@json_option
def show(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    """Show every setting, its value and where it comes from.

    Sources are default, file, environment and flag, each over the one before.
    """
    rows = [(each.name, each.shown(settings), settings.source(each.name)) for each in SETTINGS]
    if as_json:
        values = {
            name: {"value": shown, "source": source.kind, "place": source.place or None}
            for name, shown, source in rows
        }
        invocation.out.json(values)
    else:
        invocation.out.table(
            ("setting", "value", "source"), [(name, value, str(source)) for name, value, source in rows]
        )
    return exits.OK


@config.command()
@takes_flags(*_ALL)
@json_option
def check(invocation: Invocation, flags: dict[str, Any], config: str | None, as_json: bool) -> int:
    """Check that `fencepost dispatch` would accept the settings.

    Publishers are made, but nothing is connected. Exits 1 with each problem.
    """
    problems = _problems(invocation, flags, config)
    if as_json:
        invocation.out.json({"problems": problems})
    elif problems:
        invocation.out.line("\n".join(problems))
    else:
        invocation.out.line("the settings are in order")
    return exits.NEGATIVE if problems else exits.OK


def _problems(invocation: Invocation, flags: dict[str, Any], config: str | None) -> list[str]:
    try:
        settings = read_settings(invocation, flags, config)
    except InvalidSettings as error:
        return list(error.problems)
    problems: list[str] = []
    for try_out in (settings.required_store, lambda: targets_of(settings)):
        try:
            try_out()
        except InvalidSettings as error:
            problems += error.problems
        except ConfigError as error:
            problems.append(str(error))
    return problems
