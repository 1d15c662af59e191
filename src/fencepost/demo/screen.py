"""Showing: lines of progress, a live table where there is a terminal, the verdict, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fencepost.demo.verdict import Line


class Screen:
    """Everything the demonstrations print; with ``quiet`` nothing but the JSON object."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet

    def title(self, text: str) -> None:
        self.show(Text(f"\n{text}", style="bold"))

    def say(self, text: str, *, seconds: float, style: str = "") -> None:
        """Print one line of progress, with the time since the beginning in front."""
        self._paragraph(Text(f"{seconds:5.1f} s  ", style="dim"), Text(text, style=style))

    def show(self, what: RenderableType) -> None:
        if not self._quiet:
            self._console.print(what, highlight=False)

    def _paragraph(self, head: Text, body: Text) -> None:
        """Print a line that goes on under its own beginning; one long line where nobody watches (a log)."""
        if not self._console.is_terminal:
            if not self._quiet:
                self._console.print(head + body, highlight=False, soft_wrap=True)
            return
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_column()
        grid.add_row(head, body)
        self.show(grid)

    @contextmanager
    def live(self, render: Callable[[], RenderableType]) -> Iterator[None]:
        """Keep a table at the bottom of a terminal up to date; elsewhere print it once, at the end."""
        if self._quiet:
            yield
        elif self._console.is_terminal:
            with Live(console=self._console, get_renderable=render, refresh_per_second=8):
                yield
        else:
            yield
            self.show(render())

    def verdict(self, lines: Sequence[Line], seconds: float) -> None:
        """Print each line with its mark, then what they come to."""
        marks = ("✓", "✗") if self._console.encoding.lower().startswith("utf") else ("ok", "NO")
        for line in lines:
            mark, style = (marks[0], "bold green") if line.holds else (marks[1], "bold red")
            self._paragraph(Text(f" {mark:2} ", style=style), Text(line.claim, style="bold"))
            self._paragraph(Text("    "), Text(line.found, style="dim" if line.holds else "red"))
        holds = all(line.holds for line in lines)
        summary = "Every line is true." if holds else "NOT every line is true."
        self.show(Text(f"\n {summary} It took {seconds:.0f} s.", style="bold green" if holds else "bold red"))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a small table."""
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        self.show(Text(f"\n {title}", style="bold"))
        self.show(Padding(table, (0, 0, 0, 2), expand=False))

    def commands(self, title: str, lines: Sequence[str]) -> None:
        """Print lines to copy: never wrapped, whatever the width."""
        if self._quiet:
            return
        self._console.print(Text(f"\n {title}", style="bold"), highlight=False)
        for line in lines:
            self._console.print(Text(f"   {line}", style="cyan"), highlight=False, soft_wrap=True)

    def json(self, result: dict[str, Any]) -> None:
        """Print one JSON object, on one line."""
        self._console.out(json.dumps(result, default=str), highlight=False)


def result_object(demo: str, seconds: float, lines: Sequence[Line], **more: Any) -> dict[str, Any]:
    """Return a verdict as the JSON object that scripts read."""
    return {
        "demo": demo,
        "holds": all(line.holds for line in lines),
        "seconds": round(seconds, 1),
        "lines": [line.as_dict() for line in lines],
        **more,
    }
