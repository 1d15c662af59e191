"""What operations there are: found in `fencepost.store`, so that a new one cannot be forgotten."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Generator
from types import CodeType
from typing import Any

import fencepost.store


def operations() -> dict[str, Callable[..., Any]]:
    """Return the public functions of the store that return an operation, by ``module.name``."""
    found: dict[str, Callable[..., Any]] = {}
    for each in pkgutil.iter_modules(fencepost.store.__path__):
        module = importlib.import_module(f"fencepost.store.{each.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_") and _is_operation(function):
                found[f"{each.name}.{name}"] = function
    return found


def _is_operation(function: Callable[..., Any]) -> bool:
    # (As text: annotations are not evaluated here, and one of them has a name of its own.)
    returned = str(function.__annotations__.get("return", ""))
    return returned.startswith(("Operation[", "ClaimOperation"))


def running(operation: Generator[Any, Any, Any]) -> set[CodeType]:
    """Return the code of a suspended operation and of those that it waits for."""
    codes: set[CodeType] = set()
    inner: Any = operation
    while inner is not None and hasattr(inner, "gi_code"):
        codes.add(inner.gi_code)
        inner = inner.gi_yieldfrom
    return codes
