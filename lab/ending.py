"""How the commands of the lab end: told to, or since they cannot work with what they were given."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

TOLD_TO_END, INTERRUPTED, REFUSED = 143, 130, 2


class Refused(Exception):
    """What was given cannot be worked with; the text says what, where, and why."""


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command and end the process with its exit code: 2 where it was refused, as for bad arguments.

    SIGTERM unwinds as Ctrl-C does: servers and processes that were started are ended as well.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TOLD_TO_END))
    try:
        sys.exit(main())
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
