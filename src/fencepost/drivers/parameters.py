"""From ``%(name)s`` parameters to PostgreSQL's own ``$1``, for drivers that send those."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NAMED = re.compile(r"%\((\w+)\)s")


def numbered(sql: str, params: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the text with a number for each name, however often it stands there, and the values in order."""
    text, names = _compiled(sql)
    return text, tuple(params[name] for name in names)


@lru_cache(maxsize=512)
def _compiled(sql: str) -> tuple[str, tuple[str, ...]]:
    names = tuple(dict.fromkeys(_NAMED.findall(sql)))
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return _NAMED.sub(lambda mark: places[mark[1]], sql), names
