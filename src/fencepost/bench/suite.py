"""Runs the sections one after the other on one server, and writes what they found."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fencepost.bench import machine, server
from fencepost.bench.bench import Bench
from fencepost.bench.contents import SECTIONS, module_of
from fencepost.bench.figures import Report, Section
from fencepost.bench.markdown import render
from fencepost.bench.svg import draw
from fencepost.core.error_text import describe
from fencepost.publishers.address import masked

REPORT_FILE = "report.md"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: which sections, at which part of the full sizes, and whether also what takes long.

    ``destinations`` are names and URLs of those that are published to.
    """

    sections: Sequence[str] = tuple(SECTIONS)
    scale: float = 1.0
    full: bool = False
    destinations: Sequence[tuple[str, str]] = ()

    @property
    def command(self) -> str:
        """How to repeat it on a command line."""
        only = [] if list(self.sections) == list(SECTIONS) else [f"--only {name}" for name in self.sections]
        scale = [] if self.scale == 1 else [f"--scale {self.scale:g}"]
        full = ["--full"] if self.full else []
        destinations = [f"--destination {name}={masked(url)}" for name, url in self.destinations]
        return " ".join(["fencepost bench report", *full, *scale, *only, *destinations])


def measure(plan: Plan, say: Say = lambda text: None) -> Report:
    """Run the sections of a plan; one that fails is part of the report, and the others are run all the same.

    Raises:
        EmbeddedError: the server cannot be started.
    """
    about = machine.described()  # before we are its load
    say("starting a server")
    with server.running_server() as url, tempfile.TemporaryDirectory(prefix="fencepost-bench-") as directory:
        bench = Bench(url, Path(directory), say, plan.scale, plan.full, plan.destinations)
        sections = tuple(_measured(name, bench) for name in plan.sections)
        return Report(tuple(about + server.described(url)), plan.command, plan.scale, sections)


def _measured(name: str, bench: Bench) -> Section:
    say = bench.say
    say(f"section {name}")
    began = time.monotonic()
    try:
        section: Section = importlib.import_module(module_of(name)).measure(
            replace(bench, say=lambda text: say(f"{name}: {text}"))
        )
    except Exception as error:  # noqa: BLE001 - minutes of measuring must not be lost to one section
        section = Section(name, SECTIONS[name], failure=describe(error))
        say(f"{name} failed: {section.failure}")
    return replace(section, seconds=time.monotonic() - began)


def write(report: Report, directory: Path) -> Path:
    """Write the report and its charts; return the path of the report."""
    directory.mkdir(parents=True, exist_ok=True)
    for section in report.sections:
        for chart in section.charts:
            directory.joinpath(f"{chart.name}.svg").write_text(draw(chart), "utf-8")
    path = directory / REPORT_FILE
    path.write_text(render(report), "utf-8")
    return path
