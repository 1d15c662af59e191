"""The file, the environment and the flags, each over the one before, read into one `Settings`."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fencepost.cli.settings.kinds import STORE
from fencepost.cli.settings.table import BY_NAME, SETTINGS
from fencepost.config import (
    DISPATCHER_NAMES,
    WORKER_PREFIX,
    WORKER_SHARED,
    DispatcherSettings,
    Settings,
    Source,
    WorkerSettings,
)
from fencepost.errors import ConfigError

CONFIG_FILE = "fencepost.toml"
CONFIG_VARIABLE = "FENCEPOST_CONFIG"

_PREFIX = "FENCEPOST_"
_OF_OTHERS = frozenset({CONFIG_VARIABLE, "FENCEPOST_EMBEDDED_DIR"})

WORKER_TABLE = "worker"

S = TypeVar("S", DispatcherSettings, WorkerSettings)

Found = dict[str, tuple[Any, Source]]


class InvalidSettings(ConfigError):
    """Settings that cannot be used; ``problems`` has them one by one."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    config: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the file, the environment and the flags, and check the result.

    Args:
        flags: what was given on the command line, by setting name: texts, sequences of texts, or booleans.
            None and an empty sequence stand for a flag that was not given.
        config: the file; else ``FENCEPOST_CONFIG``, else ``fencepost.toml`` where it exists.
        environ: the environment; the process's own by default.

    Raises:
        InvalidSettings: an unknown name, a value of the wrong type or one that cannot work; every problem.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    path = config_path(config, environ)
    found: Found = {} if path is None else _from_file(path, problems)
    found |= _from_environment(environ, problems)
    found |= _from_flags(flags or {}, problems)
    if problems:
        raise InvalidSettings(problems)
    return _checked(found)


def config_path(config: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file to read, if there is one."""
    named = config or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).exists() else None


def _from_file(path: Path, problems: list[str]) -> Found:
    source = Source("file", str(path))
    found: Found = {}
    for name, value in _document(path, problems).items():
        if name == WORKER_TABLE:
            _from_worker_table(value, path, found, problems)
        elif name in BY_NAME and not BY_NAME[name].is_of_worker:
            _read(BY_NAME[name].kind.from_toml, name, value, source, found, problems)
        else:
            problems.append(f"{path}: unknown setting {name!r}: {_advice(name, value)}")
        if name in ("destinations", "routes"):
            problems += [
                f"{path}: setting {key!r} stands under {head}: move it above"
                for head, key in _swallowed(name, value)
            ]
    return found


def _from_worker_table(table: object, path: Path, found: Found, problems: list[str]) -> None:
    if not isinstance(table, dict):
        problems.append(f"{path}: {WORKER_TABLE} is a table: write [{WORKER_TABLE}], and its settings below")
        return
    own = [each.name.removeprefix(WORKER_PREFIX) for each in SETTINGS if each.is_of_worker]
    for key, value in table.items():
        if key in own:
            name = f"{WORKER_PREFIX}{key}"
            _read(BY_NAME[name].kind.from_toml, name, value, Source("file", str(path)), found, problems)
        else:
            remedy = "move it above" if key in BY_NAME else f"there are {', '.join(own)}"
            problems.append(f"{path}: setting {key!r} stands under [{WORKER_TABLE}]: {remedy}")


def _swallowed(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield settings that were meant to stand alone: TOML puts whatever follows a table's head into the table."""
    if isinstance(value, list):
        tables = [(f"[[{name}]]", each) for each in value if isinstance(each, dict)]
    else:
        tables = [(f"[{name}]", value)] if isinstance(value, dict) else []
    for head, table in tables:
        for key in sorted(BY_NAME & table.keys()):
            if name == "routes" or _is_no_destination(key, table[key]):
                yield head, key


def _is_no_destination(key: str, value: object) -> bool:
    """Tell a setting from a destination of its name."""
    if isinstance(value, dict):
        return False
    is_target = isinstance(value, str) and ":" in value
    return not is_target or (BY_NAME[key].kind is STORE and str(value).startswith(("postgres", "embedded:")))


def _document(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(
            f"{path}: cannot be read ({error.strerror or error}): check --config and {CONFIG_VARIABLE}"
        )
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: not valid TOML: {error}")
    except UnicodeDecodeError:
        problems.append(f"{path}: not UTF-8 text: save it as UTF-8")
    return {}


def _advice(name: str, value: object) -> str:
    if name in BY_NAME:
        return f"write it as {name.removeprefix(WORKER_PREFIX)!r} under [{WORKER_TABLE}]"
    close = difflib.get_close_matches(name, [*BY_NAME, WORKER_TABLE], n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if isinstance(value, dict):
        return "the only tables are [worker], [destinations] and [routes]; all other settings stand above them"
    return "`fencepost config show` lists the settings"


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Found:
    known = {setting.variable: setting for setting in SETTINGS}
    found: Found = {}
    for variable in sorted(environ):
        if variable in known:
            # An empty variable counts as unset: tools that compose environments pass empty ones on.
            if environ[variable]:
                setting, source = known[variable], Source("environment", variable)
                _read(setting.kind.from_text, setting.name, environ[variable], source, found, problems)
        elif meant := _meant_variable(variable, known):
            problems.append(f"environment: unknown variable {variable}: did you mean {meant}?")
    return found


def _meant_variable(variable: str, known: Iterable[str]) -> str | None:
    """Return the variable that an unknown one is probably a misspelling of.

    Others may use our prefix (Kubernetes does, for a service that is called fencepost): only a near miss
    counts as a mistake.
    """
    if not variable.startswith(_PREFIX) or variable in _OF_OTHERS:
        return None
    names = [name.removeprefix(_PREFIX) for name in known]
    close = difflib.get_close_matches(variable.removeprefix(_PREFIX), names, n=1, cutoff=0.8)
    return f"{_PREFIX}{close[0]}" if close else None


def _from_flags(flags: Mapping[str, object], problems: list[str]) -> Found:
    found: Found = {}
    for name, given in flags.items():
        if given is None or given == ():
            continue
        kind = BY_NAME[name].kind
        read: Callable[[Any], Any] = kind.from_text
        if isinstance(given, bool):
            read = kind.from_toml
        elif not isinstance(given, str) and kind.from_texts is not None:
            read = kind.from_texts
        _read(read, name, given, Source("flag", BY_NAME[name].option), found, problems)
    return found


def _read(
    read: Callable[[Any], Any], name: str, value: object, source: Source, found: Found, problems: list[str]
) -> None:
    try:
        found[name] = (read(value), source)
    except ValueError as error:
        problems.append(f"{name} ({source}): {error}")


def _checked(found: Found) -> Settings:
    values = {name: value for name, (value, _) in found.items()}
    sources = {name: source for name, (_, source) in found.items()}
    shared = {name: values[name] for name in WORKER_SHARED & values.keys()}
    of_dispatcher = {name: values.pop(name) for name in DISPATCHER_NAMES & values.keys()}
    own = {
        name.removeprefix(WORKER_PREFIX): values.pop(name)
        for name in [each for each in values if each.startswith(WORKER_PREFIX)]
    }
    problems: list[str] = []
    dispatcher = _made(DispatcherSettings, of_dispatcher, problems)
    # What is wrong with what both share was told already.
    worker = _made(WorkerSettings, own if problems else shared | own, problems, prefix=WORKER_PREFIX)
    try:
        if dispatcher is not None and worker is not None:
            return Settings(**values, dispatcher=dispatcher, worker=worker, sources=sources)
    except ConfigError as error:
        problems += _problems(error)
    raise InvalidSettings(_with_source(problem, sources) for problem in problems)


def _made(kind: type[S], values: Mapping[str, Any], problems: list[str], prefix: str = "") -> S | None:
    """Return settings of one kind; or None, and what is wrong among the problems."""
    try:
        return kind(**values)
    except ConfigError as error:
        problems += [f"{prefix}{problem}" for problem in _problems(error)]
        return None


def _problems(error: ConfigError) -> list[str]:
    """Split an error that lists several settings, each as ``name: what is wrong``."""
    return re.split(r"; (?=\w+: )", str(error))


def _with_source(problem: str, sources: Mapping[str, Source]) -> str:
    """Say where the setting was set that a problem begins with."""
    name = re.split(r"[: ]", problem, maxsplit=1)[0]
    if name not in sources:
        return problem
    return f"{name} ({sources[name]}): {problem.removeprefix(name).lstrip(': ')}"
