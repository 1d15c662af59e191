"""What commands about single rows share: their ids, and how a row is shown in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fencepost.cli.messages import MAX_ID, text_of
from fencepost.cli.output import Output

ROW_ID = click.IntRange(1, MAX_ID)


def show_full(out: Output, full: Mapping[str, Any]) -> None:
    """Print a row in full, a column a line."""
    width = max(map(len, full))
    for name, value in full.items():
        shown = out.text(str(text_of(value))).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{name:{width}}  {shown}")
