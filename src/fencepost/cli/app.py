"""The program: its commands, and the one place that turns whatever leaves them into an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, TextIO

import click

from fencepost.cli import exits
from fencepost.cli.failures import failure_of
from fencepost.cli.invocation import Invocation
from fencepost.cli.options import debug_option

PROGRAM = "fencepost"

COMMANDS = {
    "demo": "fencepost.cli.demo:demo",
    "init": "fencepost.cli.schema:init",
    "migrate": "fencepost.cli.schema:migrate",
    "dispatch": "fencepost.cli.dispatch:dispatch",
    "work": "fencepost.cli.work:work",
    "status": "fencepost.cli.status:status",
    "dead": "fencepost.cli.dead:dead",
    "jobs": "fencepost.cli.jobs:jobs",
    "attempts": "fencepost.cli.attempts:attempts",
    "keys": "fencepost.cli.keys:keys",
    "pause": "fencepost.cli.queue:pause",
    "resume": "fencepost.cli.queue:resume",
    "queue": "fencepost.cli.queue:queue",
    "doctor": "fencepost.cli.doctor:doctor",
    "purge": "fencepost.cli.purge:purge",
    "inbox": "fencepost.cli.inbox:inbox",
    "partition": "fencepost.cli.partition:partition",
    "config": "fencepost.cli.config:config",
    "bench": "fencepost.cli.bench:bench",
}


class Commands(click.Group):
    """The commands in the order in which one meets them, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"{PROGRAM} {installed_version()}")
        context.exit()


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


@click.command(
    cls=Commands,
    name=PROGRAM,
    epilog=exits.epilog(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
@debug_option
def cli() -> None:
    """A transactional outbox for PostgreSQL: publishes what was committed, at least once, behind a fence.

    Every command takes --store URL, or reads FENCEPOST_STORE or fencepost.toml. Start with `fencepost demo`,
    or with `fencepost init --store URL`.
    """


def main() -> NoReturn:
    """Run the program and exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Text that the terminal's encoding lacks is shown as escapes, never a crash.
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation()
    try:
        code: Any = run(sys.argv[1:], invocation)
    except SystemExit as wanted:
        if invocation.leave is None:
            raise
        code = wanted.code
    if invocation.leave is not None:
        invocation.leave(code if isinstance(code, int) else exits.OK if code is None else exits.FAILED)
    sys.exit(code)


def run(arguments: Sequence[str], invocation: Invocation | None = None) -> int:
    """Run one command line and return its exit code; whatever happens is said in one line."""
    if f"_{PROGRAM.upper()}_COMPLETE" in os.environ:
        cli.main(list(arguments), PROGRAM)  # shell completion: prints and exits
    invocation = invocation or Invocation()
    try:
        code = _invoke(arguments, invocation)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return exits.READER_GONE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except click.Abort:
        return exits.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - said in one line; the traceback is there for the asking
        return _report(error, invocation)
    return code


# A group without a command: newer versions of click raise its help, older ones print it.
_NO_COMMAND: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _invoke(arguments: Sequence[str], invocation: Invocation) -> int:
    try:
        with cli.make_context(PROGRAM, list(arguments), obj=invocation) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    return result if isinstance(result, int) else exits.OK


def _report(error: Exception, invocation: Invocation) -> int:
    if isinstance(error, _NO_COMMAND):
        click.echo(error.format_message(), err=True)
        return exits.USAGE
    failure = failure_of(error, invocation.settings)
    if invocation.debug:
        click.echo(invocation.redact("".join(traceback.format_exception(error))), err=True, nl=False)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    invocation.out.note(f"{PROGRAM}: error: {failure.text}")
    return failure.code


def _discard(stream: TextIO) -> None:
    """Keep the interpreter's own last flush from complaining about the reader that went away."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
