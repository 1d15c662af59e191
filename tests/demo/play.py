"""A program that plays a demonstration: ``python -m tests.demo.play demo|race ADDRESS json|text|terminal``."""

from __future__ import annotations

import sys

from rich.console import Console

from fencepost.demo import run_demo, run_race


def main() -> int:
    which, address, how = sys.argv[1:]
    # A terminal without colours, so that the tests can read what is on it.
    console = Console(width=100, force_terminal=how == "terminal", color_system=None)
    run = {"demo": run_demo, "race": run_race}[which]
    return run(address, console=console, as_json=how == "json")


if __name__ == "__main__":
    sys.exit(main())
