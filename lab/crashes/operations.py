"""What operations there are: found in `fencepost.store` and `fencepost.client`, so that none can be forgotten."""

from __future__ import annotations

import dis
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Generator, Iterator
from types import CodeType, ModuleType
from typing import Any

import fencepost.client
import fencepost.store


def operations() -> dict[str, Callable[..., Any]]:
    """Return every operation by its name.

    Those of the store are its public functions that return one, by ``module.name``. Those of the client are
    functions and methods that put one together of others, by ``client.module.name``: what only hands one on has no
    boundaries of its own.
    """
    found = {f"{module}.{function.__name__}": function for module, function in _of_store()}
    return found | {f"client.{module}.{function.__name__}": function for module, function in _of_client()}


def _of_store() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, module in _modules(fencepost.store):
        for function in _functions(module, module.__name__):
            if not function.__name__.startswith("_") and _is_operation(function):
                yield name, function


def _of_client() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, module in _modules(fencepost.client):
        places = [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]
        for place in places:
            for function in _functions(place, module.__name__):
                if inspect.isgeneratorfunction(function) and _is_operation(function):
                    yield name, function


def several_at_once() -> list[str]:
    """Return the methods of the client that run more than one operation: nothing cuts them in between."""
    return sorted(
        function.__qualname__
        for _, module in _modules(fencepost.client)
        for _, place in inspect.getmembers(module, inspect.isclass)
        for function in _functions(place, module.__name__)
        if sum(each.argval == "_run" for each in dis.get_instructions(function)) > 1
    )


def _modules(package: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    for each in pkgutil.iter_modules(package.__path__):
        yield each.name, importlib.import_module(f"{package.__name__}.{each.name}")


def _functions(place: object, module: str) -> list[Callable[..., Any]]:
    return [each for _, each in inspect.getmembers(place, inspect.isfunction) if each.__module__ == module]


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
