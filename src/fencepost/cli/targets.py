"""From the configured routes to routes that a dispatcher takes."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

from fencepost.cli.settings.addresses import PYTHON_TARGET
from fencepost.config import Settings
from fencepost.core.error_text import describe
from fencepost.errors import ConfigError
from fencepost.runtime.routes import Route, Router


def routes_of(settings: Settings) -> list[Route]:
    """Return the routes with their publishers made; nothing is connected yet.

    Raises:
        ConfigError: there are none, or a destination cannot be made.
    """
    if not settings.routes:
        raise ConfigError(
            "routes: nothing says where messages go: pass --to URL, --route PATTERN=URL or --publisher "
            "MODULE:OBJECT, or write [routes] into fencepost.toml"
        )
    routes = [Route(pattern, _publisher(target)) for pattern, target in settings.routes]
    Router(routes)  # makes each publisher once, to find out now what is wrong with it
    return routes


def _publisher(target: str) -> Any:
    if not target.startswith(PYTHON_TARGET):
        return target
    return imported(target.removeprefix(PYTHON_TARGET))


def imported(name: str) -> Any:
    """Return the object ``module:object``; modules of the working directory are found as well.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, path = name.partition(":")
    here = ""  # the working directory, whatever it is at the time of an import
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return functools.reduce(getattr, path.split("."), import_module(module))
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ConfigError(f"publisher {name} cannot be loaded: {describe(error)}") from error
