"""The SQL files, with the names of one installation's tables filled in.

Only identifiers and the shared column list are filled in, once, when a file is loaded; every value travels
as a bound parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fencepost.core.operation import Statement
from fencepost.errors import ConfigError

BESIDE_THE_OUTBOX = (
    *("audit", "migration", "queue", "key", "inbox", "inbox_key"),
    *("job", "job_audit", "cron", "attempt", "fence"),
)
"""The other tables, each named after the outbox."""

_NAMED_AFTER_THE_TABLE = (
    *("pkey", "ready", "dedupe", "state", "limits", "shape", "unordered", "order", "order_check"),
    *("queue_pkey", "queue_limits", "queue_shared", "key_pkey"),
    *("inbox_pkey", "inbox_limits", "inbox_age", "inbox_key_pkey", "inbox_number"),
    *("job_pkey", "job_limits", "job_state", "job_ready", "job_lane", "job_suspect", "job_leased"),
    *("job_unique", "job_done", "job_failed"),
    *("cron_pkey", "attempt_pkey", "attempt_shape", "attempt_row", "fence_pkey", "fence_limits", "fence_age"),
)
# No text constant of ours holds two dashes.
_COMMENT = re.compile(r"--.*")
_FRAGMENT = re.compile(r"\{([a-z_]+)\}")
_IDENTIFIER = re.compile(r"[^\W\d][\w$-]*")
# PostgreSQL cuts identifiers at 63 bytes without an error; our longest suffix is "_migration_pkey".
_MAX_IDENTIFIER_BYTES = 63 - len("_migration_pkey")

FAR = "timestamptz '9999-12-31 00:00:00+00'"
"""Where parked and dead rows sit: an instant that every driver can read."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where the tables are: a schema and the outbox table's name; the other tables are named after it.

    Raises:
        ConfigError: a name that PostgreSQL would cut or that cannot be an identifier.
    """

    schema: str = "public"
    table: str = "outbox"

    def __post_init__(self) -> None:
        for setting, value in (("schema", self.schema), ("table", self.table)):
            if not _IDENTIFIER.fullmatch(value):
                raise ConfigError(
                    f"{setting} {value!r} is not usable as a name: "
                    "start with a letter or _, then letters, digits, _, $ or -"
                )
            if len(value.encode()) > _MAX_IDENTIFIER_BYTES:
                raise ConfigError(f"{setting} {value!r} is longer than {_MAX_IDENTIFIER_BYTES} bytes: shorten it")

    @property
    def channel(self) -> str:
        """The NOTIFY channel; a name of at most 63 bytes, hence the table alone."""
        return f"fencepost:{self.table}"

    @property
    def job_channel(self) -> str:
        """The NOTIFY channel of jobs."""
        return f"fencepost:{self.table}:j"

    def placeholders(self) -> dict[str, str]:
        """Return what the SQL files' ``{name}`` marks stand for."""
        marks = {
            "schema": quoted(self.schema),
            "far": FAR,
            "outbox": f"{quoted(self.schema)}.{quoted(self.table)}",
        }
        for table in BESIDE_THE_OUTBOX:
            marks[table] = f"{quoted(self.schema)}.{quoted(f'{self.table}_{table}')}"
        for mark in _NAMED_AFTER_THE_TABLE:
            marks[mark] = quoted(f"{self.table}_{mark}")
        return marks


def quoted(identifier: str) -> str:
    """Quote an identifier for PostgreSQL, which doubles the quotes inside."""
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Catalog:
    """The statements of one store under one set of names."""

    names: Names = Names()
    dialect: str = "postgresql"

    def statement(self, name: str, params: Mapping[str, Any] | None = None) -> Statement:
        """Return the statement of ``sql/<dialect>/<name>.sql`` with its parameters."""
        return Statement(name, _load(self.dialect, name, self.names), params or {})

    def migrations(self) -> list[tuple[int, str, str]]:
        """Return (version, name, SQL) of every migration, in order."""
        found = []
        for file in (_folder(self.dialect) / "migrations").iterdir():
            if file.name.endswith(".sql"):  # pragma: no branch - only a checkout may have other files there
                version, _, name = file.name.removesuffix(".sql").partition("_")
                found.append((int(version), name, _load(self.dialect, f"migrations/{file.name[:-4]}", self.names)))
        return sorted(found)


def _folder(dialect: str) -> Traversable:
    return resources.files("fencepost.store") / "sql" / dialect


@lru_cache(maxsize=512)
def _load(dialect: str, name: str, names: Names) -> str:
    text = _read(dialect, name)
    for _ in range(2):  # a fragment may use another fragment
        text = _FRAGMENT.sub(lambda mark: _fragment(dialect, mark), text)
    if not name.startswith("migrations/"):
        text = _plain(text)
    for mark, value in names.placeholders().items():
        text = text.replace("{" + mark + "}", value)
    return text


def _plain(text: str) -> str:
    """Leave out comments and indentation: drivers parse short statements once and remember them."""
    return "\n".join(filter(None, (_COMMENT.sub("", line).strip() for line in text.splitlines())))


def _fragment(dialect: str, mark: re.Match[str]) -> str:
    try:
        return _read(dialect, f"fragments/{mark[1]}").strip()
    except FileNotFoundError:
        return mark[0]  # a name, filled in afterwards


def _read(dialect: str, name: str) -> str:
    return _folder(dialect).joinpath(*f"{name}.sql".split("/")).read_text(encoding="utf-8")
