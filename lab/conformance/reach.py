"""What histories exercise of the store: statements by their files, operations by their functions, and what not.

Both lists are made by looking, so that a new statement or operation is either exercised or named here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from types import CodeType, FrameType
from typing import Any

from fencepost import store

_SERVER = "asks the server about itself: there is nothing that a model could say"
_PEOPLE = "read for people, and by nobody who decides anything"
_TABLES = "makes the tables, which stand before a history begins"

LEFT_OUT: Mapping[str, str] = {
    "doctor_": _SERVER,
    "schema_": _SERVER,
    "migration_": _TABLES,
    "purge_holder": _SERVER,
    "session": "the settings of a session, which each store makes before a history begins",
    "job_list_": _PEOPLE,
    "job_show": _PEOPLE,
    "job_stuck_": _PEOPLE,
    "keys_blocked": _PEOPLE,
    "inbox_consumers": _PEOPLE,
}
"""Statements that no history sends, by how their names begin, with the reason."""

OPERATIONS_LEFT_OUT: Mapping[str, str] = {
    "doctor.": _SERVER,
    "schema.": _TABLES,
    "partitions.": "partitions are made and dropped by the server: there is one table here",
    "upkeep.purge_holder": _SERVER,
    "fenced.mark_done": "is `fenced.close`, which is exercised, and one union of two sets",
    "job_operators.list_jobs": _PEOPLE,
    "job_operators.show": _PEOPLE,
    "job_operators.stuck": _PEOPLE,
    "keys.blocked_keys": _PEOPLE,
    "inbox.consumers": _PEOPLE,
}
"""Operations that no history runs, likewise."""


def statements() -> set[str]:
    """Return the names of all statements."""
    files = (resources.files("fencepost.store") / "sql" / "postgresql").iterdir()
    return {file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql")}


def operations() -> dict[str, CodeType]:
    """Return all operations: the functions of the store's modules that are given a catalog first."""
    found = {}
    for info in pkgutil.iter_modules(store.__path__):
        module = importlib.import_module(f"{store.__name__}.{info.name}")
        for name, function in vars(module).items():
            if _is_operation(function, module.__name__) and not name.startswith("_"):
                found[f"{info.name}.{name}"] = function.__code__
    return found


def _is_operation(function: Any, module: str) -> bool:
    if not inspect.isfunction(function) or function.__module__ != module:
        return False
    return next(iter(inspect.signature(function).parameters), None) == "catalog"


@contextmanager
def watched() -> Iterator[Callable[[], set[str]]]:
    """Watch which operations are run; what is yielded tells."""
    codes = {code: name for name, code in operations().items()}
    seen: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            seen.add(codes[frame.f_code])

    sys.setprofile(watch)
    try:
        yield lambda: set(seen)
    finally:
        sys.setprofile(None)


def reason(name: str, left_out: Mapping[str, str]) -> str | None:
    """Return why something is left out, or None where it is to be exercised."""
    return next((why for beginning, why in left_out.items() if name.startswith(beginning)), None)
