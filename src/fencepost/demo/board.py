"""What the live table shows while the demonstration runs, and how it looks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_STYLES = {"running": "green", "killed": "bold red", "frozen": "bold cyan", "resumed": "green", "ended": "dim"}


@dataclass(slots=True)
class WorkerView:
    """One worker as it stands."""

    pid: int
    state: str = "running"
    claimed: int = 0
    delivered: int = 0
    lost_leases: int = 0


@dataclass(slots=True)
class Board:
    """The figures of the moment; the threads that know them write them here."""

    started: float = field(default_factory=time.monotonic)
    orders: int = 0
    rolled_back: int = 0
    pending: int = 0
    processing: int = 0
    done: int = 0
    dead: int = 0
    received: int = 0
    distinct: int = 0
    workers: dict[str, WorkerView] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time since the demonstration began."""
        return time.monotonic() - self.started

    def render(self) -> RenderableType:
        return Padding(Group(self._totals(), "", self._workers()), (1, 0, 1, 1))

    def _totals(self) -> Table:
        rows: list[tuple[str, list[tuple[int, str, str]]]] = [
            ("shop", [(self.orders, "committed", ""), (self.rolled_back, "rolled back", "")]),
            (
                "outbox",
                [
                    (self.pending, "pending", ""),
                    (self.processing, "processing", "yellow"),
                    (self.done, "done", "green"),
                    (self.dead, "dead", "bold red" if self.dead else ""),
                ],
            ),
            (
                "receiver",
                [
                    (self.received, "received", ""),
                    (self.distinct, "different", "green"),
                    (self.received - self.distinct, "repeats", "magenta"),
                ],
            ),
        ]
        table = Table.grid(padding=(0, 1))
        table.add_column(style="bold", min_width=10)
        for _ in range(4):
            table.add_column(justify="right", min_width=4)
            table.add_column(style="dim", min_width=11)
        for title, cells in rows:
            row: list[RenderableType] = [title]
            for value, name, style in cells:
                row += [Text(str(value), style=style), name]
            table.add_row(*row)
        return table

    def _workers(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        table.add_column("worker", style="bold", min_width=10)
        table.add_column("process", justify="right", min_width=7)
        table.add_column("state", min_width=8)
        for name in ("claimed", "delivered", "lost leases"):
            table.add_column(name, justify="right", min_width=len(name))
        for name, worker in self.workers.items():
            table.add_row(
                name,
                str(worker.pid),
                Text(worker.state, style=_STYLES.get(worker.state, "")),
                str(worker.claimed),
                str(worker.delivered),
                Text(str(worker.lost_leases), style="magenta" if worker.lost_leases else ""),
            )
        return table
