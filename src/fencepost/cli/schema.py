"""``init`` and ``migrate``: the tables, and a configuration file to start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.settings import config_path
from fencepost.cli.settings.loading import CONFIG_FILE
from fencepost.cli.starter import starter_file
from fencepost.config import Settings
from fencepost.errors import ConfigError, SchemaError


@click.command()
@takes_settings(*STORE)
def init(invocation: Invocation, settings: Settings) -> int:
    """Create the tables and a fencepost.toml.

    Safe to run again: what is there is left alone.
    """
    applied = _migrate(invocation, settings)
    out = invocation.out
    place = f"{settings.schema}.{settings.table}"
    out.line(f"created the tables {place}" if applied else f"the tables {place} are up to date")
    existing = config_path(None, os.environ)
    if existing is not None and existing.exists():
        out.line(f"left {existing} as it is")
        return exits.OK
    path = existing or Path(CONFIG_FILE)
    try:
        # Never over a file that somebody made in the meantime.
        with path.open("x", encoding="utf-8") as file:
            file.write(starter_file(settings))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); the tables are in place") from None
    out.line(f"wrote {path}: say there where the messages go, then run `fencepost dispatch`")
    return exits.OK


@click.command()
@takes_settings(*STORE)
@click.option("--sql", is_flag=True, help="Print the SQL instead, for an empty place; needs no database.")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 with each problem and its remedy.")
@json_option
def migrate(invocation: Invocation, settings: Settings, sql: bool, check: bool, as_json: bool) -> int:
    """Bring the tables up to date.

    In one transaction, and safe to run by several processes at once.
    """
    if sql and check:
        raise click.UsageError("--sql and --check exclude each other: --sql looks at no database")
    if sql:
        click.echo(outbox_of(settings).schema_sql(), nl=False)
        return exits.OK
    if check:
        return _check(invocation, settings, as_json)
    applied = _migrate(invocation, settings)
    if as_json:
        invocation.out.json({"applied": applied})
        return exits.OK
    for name in applied:
        invocation.out.line(f"applied migration {name}")
    if not applied:
        invocation.out.line(f"the tables {settings.schema}.{settings.table} are up to date")
    return exits.OK


def _migrate(invocation: Invocation, settings: Settings) -> list[str]:
    with invocation.connected(settings, "migrate") as connection:
        steps = outbox_of(settings).migrate(connection)
        connection.commit()
    return [f"{step.version:04} {step.name}" for step in steps]


def _check(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    with invocation.connected(settings, "migrate") as connection:
        try:
            problems = outbox_of(settings).check_schema(connection)
        except SchemaError as error:
            problems = [str(error)]
    if as_json:
        invocation.out.json({"problems": problems})
    for problem in [] if as_json else problems:
        invocation.out.line(problem)
    if not problems and not as_json:
        invocation.out.line(f"the tables {settings.schema}.{settings.table} are in order")
    return exits.NEGATIVE if problems else exits.OK
