"""The child's side of a process of the demonstration: settings come in on stdin, reports go out on stdout.

Both are lines of JSON. The end of stdin means that the parent is gone, however it ended; so must the child.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_writing = threading.Lock()

PARENT_GONE = 3
"""Exit status of a child that was left alone."""


def read_settings() -> dict[str, Any]:
    """Return the settings, the first line that the parent writes."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    return settings


def report(kind: str, **figures: Any) -> None:
    """Tell the parent something."""
    line = json.dumps({"kind": kind, **figures})
    with _writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def follow_parent(obey: Callable[[dict[str, Any]], None]) -> None:
    """Obey the parent's commands from a thread, and end this process at once when the parent is gone."""

    def follow() -> None:
        for line in sys.stdin:
            obey(json.loads(line))
        os._exit(PARENT_GONE)

    threading.Thread(target=follow, name="follow parent", daemon=True).start()
