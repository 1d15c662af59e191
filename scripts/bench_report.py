"""``make bench-report``: the report with real servers of every kind for its section ``destinations``.

``python -m scripts.bench_report [--broker NAME]... [any option of fencepost bench report]`` from the root of the
checkout; ``--broker none`` starts none. Servers come from the helpers of the tests; those that are missing are
told and left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.brokers import BROKERS, running

from fencepost.cli.app import run

NONE = "none"


def main(arguments: list[str]) -> int:
    """Start the servers, and let the command line measure."""
    parser = argparse.ArgumentParser(prog="bench_report", description=__doc__, allow_abbrev=False)
    parser.add_argument("--broker", action="append", choices=[*BROKERS, NONE], help="only these; can be repeated")
    own, options = parser.parse_known_args(arguments)
    names = [name for name in own.broker or BROKERS if name != NONE]
    with tempfile.TemporaryDirectory(prefix="fencepost-brokers-") as directory:
        Path(directory).chmod(0o711)  # a server that runs as another user has to pass
        with running(names, Path(directory), lambda text: print(text, file=sys.stderr)) as found:  # noqa: T201 - a script
            given = [part for name, url in found.items() for part in ("--destination", f"{name}={url}")]
            return run(["bench", "report", *options, *given])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
