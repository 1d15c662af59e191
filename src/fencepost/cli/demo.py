"""``demo``: the main job and the broken design beside it, shown on a database of their own."""

from __future__ import annotations

import click

from fencepost.cli.invocation import Invocation
from fencepost.cli.options import debug_option, json_option
from fencepost.cli.settings.addresses import check_store

demo_store_option = click.option(
    "--store", metavar="URL", help="Use this database, instead of a PostgreSQL that lives as long as the demo."
)


@click.group(invoke_without_command=True)
@demo_store_option
@json_option
@debug_option
@click.pass_context
def demo(context: click.Context, store: str | None, as_json: bool) -> int | None:
    """See it work, and fail safely, in half a minute."""
    if context.invoked_subcommand is not None:
        if store is not None or as_json:
            raise click.UsageError(
                f"write the options behind the command: fencepost demo {context.invoked_subcommand} …"
            )
        return None
    from fencepost.demo import run_demo

    invocation: Invocation = context.obj
    return run_demo(_address(invocation, store), console=invocation.out.console(), as_json=as_json)


@demo.command()
@demo_store_option
@json_option
@debug_option
@click.pass_obj
def race(invocation: Invocation, store: str | None, as_json: bool) -> int:
    """See the usual broken dispatcher beside the right one."""
    from fencepost.demo import run_race

    return run_race(_address(invocation, store), console=invocation.out.console(), as_json=as_json)


def _address(invocation: Invocation, store: str | None) -> str:
    """Return the demo's store: a flag only, so that a configured database is never filled by accident."""
    if store is None:
        return ""
    try:
        check_store(store)
    except ValueError as error:
        raise click.UsageError(f"--store: {error}") from None
    invocation.redact.learn_store(store)
    return store
