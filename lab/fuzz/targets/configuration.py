"""Configuration: a file, the environment and flags, odd and damaged; settings, or an error that names one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from fencepost.cli.settings import SETTINGS
from fencepost.cli.starter import starter_file
from fencepost.config import Settings
from lab.fuzz import values
from lab.fuzz.command import SECRET, clean_environment, judged, ran
from lab.fuzz.places import Places
from lab.fuzz.target import Case, OneByOne, Result, Verdict, failed

STORES = (
    f"postgresql://app:{SECRET}@db/shop",
    f"postgresql://app@db/shop?password={SECRET}",
    f"host=db user=app password={SECRET}",
    f"host=db password='{SECRET}'",
    f"postgres://app:{SECRET}%40x@[::1]:5432,other/shop?sslmode=require",
    "embedded:",
    "embedded:/tmp/x",
)
TARGETS = (
    f"https://user:{SECRET}@example.com/hook",
    f"amqp://u:{SECRET}@mq/vhost?exchange=e",
    f"redis://:{SECRET}@r/0",
    f"nats://{SECRET}@n:4222?subject={{event_type}}",
    f"mqtts://u:{SECRET}@m:8883",
    f"kafka://u:{SECRET}@k1:9092/?topic=t",
    f"https://example.com/?secret=whsec_{SECRET}",
    "stdout:",
    "python:package.module:publish",
    "sqs://eu-west-1/q",
)
VALUES = (
    *(
        '""',
        '"x"',
        "0",
        "1",
        "-1",
        "1.5",
        "true",
        "[]",
        "{}",
        '["a"]',
        "[1]",
        '"10s"',
        '"1h30m"',
        '"-5s"',
        '"∞"',
        "1e400",
    ),
    *(
        "nan",
        "inf",
        '"1000000000000000000000d"',
        '"10 s"',
        "1979-05-27",
        "9223372036854775808",
        '"\\u0000"',
        '"a\\nb"',
        "{a=1}",
    ),
    *(
        '"info"',
        '"debug"',
        '"retry"',
        '"stop"',
        "100",
        "[[]]",
        '["a","a"]',
        '"٣s"',
        '"1e9s"',
        '"0s"',
        '"999999999d"',
    ),
)
LINES = (
    "[destinations]", "[routes]", "[worker]", "[[routes]]", "[other]", 'hook = "https://example.com/"',
    "= 1", '"a',
    '"order.*" = ["hook"]', 'event_type = "*"', 'to = "stdout:"', 'to = ["a","b"]', "[[[", "\x00",
    'x = { url = "stdout:", timeout = 5 }',
)  # fmt: skip


class Configuration(OneByOne):
    name = "configuration"
    share = 1.5

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        self._folder = places.folder / "configuration"
        self._folder.mkdir(exist_ok=True)
        self._starter = starter_file(Settings())
        with clean_environment() as self._environ:
            yield

    _folder: Path
    _environ: dict[str, str]
    _starter: str

    def case(self, chance: Random) -> Case:
        kind = chance.randrange(3)
        text = "\n".join(_lines(chance)) if kind else starter_file(Settings())
        if kind == 0:
            text = _uncommented(chance, text)
        data = text.encode("utf-8", "surrogatepass")
        if values.often(chance, 0.3):
            data = values.damaged(chance, data)
        return {
            "command": chance.choice(("show", "check")),
            "file": data,
            "environ": _environ(chance),
            "flags": _flags(chance),
            "json": values.often(chance, 0.3),
        }

    def one(self, case: Case) -> Result:
        path = self._folder / "f.toml"
        path.write_bytes(case.get("file", b""))
        arguments = ["config", case.get("command", "show"), "--config", str(path), *case.get("flags", [])]
        said = ran(
            [*arguments, *(["--json"] if case.get("json") else [])],
            self._folder,
            self._environ | case.get("environ", {}),
        )
        result = judged(said, told=_is_told(case))
        if result.verdict is Verdict.REFUSED and not _names_something(said.err):
            return failed("an error that names no setting", said.err[:500])
        if result.verdict is Verdict.ACCEPTED and case.get("json"):
            json.loads(said.out)
        return result


def _lines(chance: Random) -> Iterator[str]:
    for _ in range(chance.randrange(8)):
        kind = chance.randrange(8)
        setting = chance.choice(SETTINGS)
        if kind == 0:
            yield chance.choice(LINES)
        elif kind == 1:
            yield f"store = {json.dumps(_address(chance, STORES))}"
        elif kind == 2:
            yield f"listen_store = {json.dumps(_address(chance, STORES))}"
        elif kind == 3:
            yield f"[destinations]\n{values.ascii_name(chance, 5)!r} = {json.dumps(_address(chance, TARGETS))}"
        elif kind == 4:
            pattern = chance.choice(("*", "order.*", "", "["))
            yield f'[routes]\n"{pattern}" = {json.dumps(_address(chance, TARGETS))}'
        else:
            yield f"{setting.name} = {chance.choice(VALUES)}"


def _address(chance: Random, good: tuple[str, ...]) -> str:
    return chance.choice(good)


def _uncommented(chance: Random, text: str) -> str:
    """Return a starter file whose settings are in force, here and there with another value."""
    found = []
    for line in text.splitlines():
        is_setting = line.startswith("# ") and " = " in line and values.often(chance, 0.3)
        bare = line[2:] if is_setting else line
        if is_setting and values.often(chance, 0.1):
            bare = f"{bare.partition(' = ')[0]} = {chance.choice(VALUES)}"
        found.append(bare)
    return "\n".join(found)


def _environ(chance: Random) -> dict[str, str]:
    found = {}
    for _ in range(chance.choice((0, 0, 1, 2))):
        setting = chance.choice(SETTINGS)
        found[setting.variable] = _text(chance, setting.name)
    if values.often(chance, 0.05):
        found["FENCEPOST_LEESE"] = "1"
    return found


def _flags(chance: Random) -> list[str]:
    found = []
    for _ in range(chance.choice((0, 0, 1, 2))):
        setting = chance.choice(SETTINGS)
        found += [setting.option, _text(chance, setting.name)]
    return found


def _text(chance: Random, name: str) -> str:
    """Return what could stand in an environment variable or on a command line: any bytes but NUL."""
    if name in ("store", "listen_store"):
        return _address(chance, STORES)
    if name == "destinations":
        return f"{values.ascii_name(chance, 5)}={_address(chance, TARGETS)}"
    if name == "routes":
        return f"{chance.choice(('*', 'a.*', ''))}={_address(chance, TARGETS)}"
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(VALUES).strip('"').replace("\\u0000", "x")
    if kind == 1:
        return chance.choice(("a,b", ",", "\udcff", "yes", "no", "on", "off", "1", "10s", "5m", "x" * 300))
    return values.text(chance).replace("\x00", "")


def _is_told(case: Case) -> bool:
    """Tell whether the file still says that it is a password, or has none: damaged, it may be a host's name."""
    text = case.get("file", b"")
    return SECRET.encode() not in text or any(f"{mark}{SECRET}".encode() in text for mark in ("password=", ":"))


def _names_something(text: str) -> bool:
    """Tell whether an error says where to look: a setting, a file, a variable, an option, a destination."""
    known: list[Any] = [each.name for each in SETTINGS] + [each.option for each in SETTINGS]
    return any(name in text for name in [*known, "f.toml", "FENCEPOST_", "--", "Usage:"])
