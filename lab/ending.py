"""How the commands of the lab end: told to, or since they cannot work with what they were given."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

TOLD_TO_END, INTERRUPTED, REFUSED = 143, 130, 2


class Refused(Exception):
    """What was given cannot be worked with; the text says what, where, and why."""


class _ToldToEnd(KeyboardInterrupt):
    """SIGTERM came.

    No SystemExit: Hypothesis takes that for a failing test, and a campaign would seem to have held.
    """


def _told_to_end(*_: object) -> NoReturn:
    raise _ToldToEnd


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command and end the process with its exit code: 2 where it was refused, as for bad arguments.

    SIGTERM unwinds as Ctrl-C does: servers and processes that were started are ended as well.
    """
    signal.signal(signal.SIGTERM, _told_to_end)
    try:
        sys.exit(main())
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except _ToldToEnd:
        sys.exit(TOLD_TO_END)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
