"""What commands about single rows share: their ids, and how a row is shown in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fencepost.cli.messages import MAX_ID, text_of
from fencepost.cli.output import Output


class _RowId(click.ParamType[int]):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= MAX_ID):
            self.fail(f"{text!r} is no id: give the number that `list` and `show` print", param, ctx)
        return int(text)


ROW_ID = _RowId()


def show_full(out: Output, full: Mapping[str, Any]) -> None:
    """Print a row in full, a column a line."""
    width = max(map(len, full))
    for name, value in full.items():
        shown = out.text(str(text_of(value))).replace("\n", "\n" + " " * (width + 2))
        click.echo(f"{name:{width}}  {shown}")
