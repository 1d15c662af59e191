"""``doctor``: what slows the outbox or breaks its order."""

from __future__ import annotations

from dataclasses import asdict

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output
from fencepost.config import Settings
from fencepost.core.records import Finding, Severity

_COLOURS = {Severity.OK: "green", Severity.UNKNOWN: "cyan", Severity.WARNING: "yellow", Severity.PROBLEM: "red"}
_WIDTH = max(map(len, Severity))


@click.command()
@takes_settings(*STORE)
@json_option
def doctor(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    """Look for what slows the outbox or breaks its order.

    Prints what each check found, with a remedy. Exits 1 where there is a problem. Changes nothing.
    """
    with invocation.connected(settings, "doctor") as connection:
        findings = outbox_of(settings).doctor(connection)
    if as_json:
        invocation.out.json({"findings": [asdict(each) for each in findings]})
    else:
        _show(invocation.out, findings)
    has_problem = any(each.severity is Severity.PROBLEM for each in findings)
    return exits.NEGATIVE if has_problem else exits.OK


def _show(out: Output, findings: list[Finding]) -> None:
    width = max(len(each.check) for each in findings)
    for each in findings:
        severity = click.style(f"{each.severity:{_WIDTH}}", fg=_COLOURS[each.severity])
        click.echo(f"{severity}  {each.check:{width}}  {out.cell(each.text)}")
        if each.remedy is not None:
            click.echo(f"{'':{_WIDTH}}  {'':{width}}  do: {out.cell(each.remedy)}")
