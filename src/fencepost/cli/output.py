"""What commands print: rich on a terminal, plain aligned text in a pipe, JSON where asked for.

Texts from the database or from settings pass through here: secrets are masked, and control characters, which
could drive the reader's terminal, are shown as escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.redaction import Redactor

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod, RenderableType

Cell = str | int | float | datetime | timedelta | None


class Output:
    """Prints for one invocation of the program."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads standard output."""
        return sys.stdout.isatty()

    def console(self, *, stderr: bool = False) -> Console:
        """Return a rich console; its broken pipes are raised as they are everywhere else."""
        from rich.console import Console

        class OurConsole(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        return OurConsole(stderr=stderr, highlight=False, emoji=False)

    def line(self, text: str = "") -> None:
        """Print a line of the command's result."""
        click.echo(self.text(text))

    def note(self, text: str) -> None:
        """Print a line that is not part of the result, to standard error."""
        click.echo(self.text(text), err=True)

    def json(self, value: Any) -> None:
        """Print a value as JSON, on one line for each call."""
        click.echo(json.dumps(self._plain(value)))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, cut: bool = False) -> None:
        """Print rows under their headers; on a terminal long texts are folded, or cut to keep a row a line."""
        cells = self.cells(rows)
        if self.is_terminal:
            self.console().print(rich_table(headers, cells, cut=cut))
        else:
            click.echo("\n".join(plain_table(headers, cells)))

    def cells(self, rows: Iterable[Sequence[Cell]]) -> list[list[str]]:
        """Return rows of values as rows of texts, each on one line."""
        return [[self.cell(value) for value in row] for row in rows]

    def cell(self, value: Cell) -> str:
        """Return a value as one line of text."""
        return self.text(_shown(value)).replace("\n", "\\n")

    def _plain(self, value: Any) -> Any:
        """Return a value as JSON knows it, secrets masked: durations in seconds, instants as ISO 8601."""
        if isinstance(value, Mapping):
            return {self._redact(str(key)): self._plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, timedelta):
            return value.total_seconds()
        return self._redact(value.isoformat() if isinstance(value, datetime) else str(value))

    def text(self, text: str) -> str:
        """Return a text fit for a terminal: secrets masked, control characters but line ends escaped."""
        return "".join(
            char if char.isprintable() or char == "\n" else _escaped(char) for char in self._redact(text)
        )


def rich_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, cut: bool = False) -> RenderableType:
    """Return a table for a terminal, numbers to the right; the last column gives way where it is too wide."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        numeric = all(_is_number(row[index]) for row in listed)
        keeps_width = cut and index < len(headers) - 1
        table.add_column(header, justify="right" if numeric and listed else "left", no_wrap=keeps_width)
    overflow: OverflowMethod = "ellipsis" if cut else "fold"
    for row in listed:
        table.add_row(*(Text(cell, no_wrap=cut, overflow=overflow) for cell in row))
    return table


def plain_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table for a pipe: columns aligned, two blanks apart, never cut or folded."""
    listed = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[index]) for row in listed) for index in range(len(headers))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in listed
    ]


def ago(duration: timedelta) -> str:
    """Return a duration in its two largest units, such as ``3d 4h`` or ``12s``."""
    seconds = max(0, int(duration.total_seconds()))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def counted(count: int, noun: str) -> str:
    """Return how many there are of something, such as ``1 message`` or ``2 messages``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _shown(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return ago(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return str(value)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).isdecimal()
