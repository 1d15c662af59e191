"""Every command and every option with odd values: a documented exit code, no traceback, no secret."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from uuid import UUID

import click
import psycopg

from fencepost import Inbox, Jobs, Outbox
from fencepost.cli.app import cli
from lab.fuzz import values
from lab.fuzz.command import SECRET, clean_environment, judged, ran, ran_apart
from lab.fuzz.places import Places
from lab.fuzz.target import Case, OneByOne, Result, Verdict, failed, refused

UNTIL_TOLD = frozenset({"dispatch", "work"})
"""They run until they are told to end: here, for one batch."""
NEVER_RUN = frozenset({"demo", "bench"})
"""They start servers: one argument too many keeps them from it, when all the others have been looked at."""
ELSEWHERE = {"dispatch": "nothing", "work": "nothing", "partition": "nothing", "init": "made"}
"""The databases of those that change tables, or would publish."""
LONGEST = 60
"""Seconds after which a command hangs: each takes one or two, on a machine that does other things more."""
FITTING = {
    "to": ("stdout:", "http://127.0.0.1:1/", "nats://127.0.0.1:1"),
    "publisher": ("lab.fuzz.commanded:publish", "lab.fuzz.commanded:missing", "lab.missing:x"),
    "routes": ("*=stdout:", "a.*=mail", "a=mail,mail", "=", "*="),
    "destinations": ("mail=stdout:", "mail=http://127.0.0.1:1/", "mail=", "=x"),
    "rows": ("1000", "5000", "1000000000", "999"),
    "ahead": ("1", "2", "5", "0"),
    "older_than": ("1d", "30d"),
    "lease": ("60s", "5m"),
    "name": ("lab.fuzz.commanded:jobs", "lab.fuzz.commanded:jobs", "lab.fuzz.commanded:publish", "lab.missing:x"),
}
"""Values that a parameter can do something with."""
NOT_OURS = frozenset({"--config", "--store", "--debug", "--watch", "--schema", "--table", "--help"})
TEXTS = (
    *(
        "1",
        "0",
        "-1",
        "2",
        "1.5",
        "9223372036854775807",
        "9223372036854775808",
        "9" * 400,
        "1e3",
        "NaN",
        "inf",
        "٣",
        "1_000",
    ),
    *(
        "10s",
        "1h30m",
        "0s",
        "-5s",
        "1000000000d",
        "1e9s",
        "∞",
        "default",
        "mail",
        "*",
        "",
        " ",
        "x" * 3_000,
        "a,b",
        "\udcff",
    ),
    *(
        str(UUID(int=7)),
        "00000000-0000-0000-0000",
        "{",
        "[]",
        '{"a":1}',
        "null",
        "'; DROP TABLE outbox; --",
        "%s",
        "%(id)s",
    ),
    *(
        "processing.1",
        "1.1.1",
        "failed:1",
        "default\n1",
        "queued.default.1",
        "a" * 100,
        "a" * 101,
        "\x1b[31m",
        "--",
        "-",
        "-x",
    ),
)


def _walked(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _walked(inner, (*path, name))
    else:
        yield path, command


class Commands(OneByOne):
    name = "commands"
    share = 1

    def __init__(self) -> None:
        self._commands = dict(_walked(cli, ()))

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        self._folder = places.folder / "commands"
        self._folder.mkdir(exist_ok=True)
        url = places.database("operators")
        _fill(url)
        self._stores = {name: _with_secret(places.database(name)) for name in set(ELSEWHERE.values())}
        self._stores[""] = _with_secret(url)
        with clean_environment() as self._environ:
            yield

    _folder: Path
    _stores: dict[str, str]
    _environ: dict[str, str]

    def case(self, chance: Random) -> Case:
        path = chance.choice(list(self._commands))
        arguments = [*path, *_arguments(chance, self._commands[path], makes=path == ("init",))]
        if path[0] in UNTIL_TOLD:
            arguments.append("--once")
        if path[0] in NEVER_RUN:
            arguments += ["--", "one", "too many"]
        return {"arguments": arguments}

    def one(self, case: Case) -> Result:
        arguments = [each.replace("\x00", "") for each in case.get("arguments", [])]
        name = arguments[0] if arguments else ""
        if name in UNTIL_TOLD | NEVER_RUN and not {"--once", "too many"} & set(arguments):
            return refused("made smaller: it would run")
        store = self._stores[ELSEWHERE.get(name, "")]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, _in_time():
            environ = self._environ | {"FENCEPOST_STORE": store}
            if name in UNTIL_TOLD:
                said = ran_apart([_sayable(each) for each in arguments], Path(folder), environ, LONGEST)
            else:
                said = ran(arguments, Path(folder), environ)
        result = judged(said)
        if (
            result.verdict is Verdict.ACCEPTED
            and "--json" in arguments
            and "--sql" not in arguments
            and said.out.strip()
        ):
            try:
                json.loads(said.out)
            except ValueError:
                return failed("not the JSON that was asked for", said.out[:300])
        return result


def _sayable(argument: str) -> str:
    """Return what of an argument can be given to a process."""
    return "".join(each for each in argument if not "\ud800" <= each <= "\udc7f")


def _with_secret(url: str) -> str:
    """Return an address with a password that the server does not ask for: it must not be shown for all that."""
    return url.replace("postgres@", f"postgres:{SECRET}@", 1)


@contextmanager
def _in_time() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise TimeoutError(f"it did not end within {LONGEST} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _arguments(chance: Random, command: click.Command, *, makes: bool) -> Iterator[str]:
    left_out = NOT_OURS - {"--schema", "--table"} if makes else NOT_OURS
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield from (_value(chance, parameter) for _ in range(chance.choice((0, 1, 1, 1, 2))))
        elif left_out.isdisjoint(parameter.opts) and values.often(chance, _share(parameter, command)):
            yield chance.choice([*parameter.opts, *parameter.secondary_opts])
            if not getattr(parameter, "is_flag", False):
                yield from (_value(chance, parameter) for _ in range(parameter.nargs))
    if values.often(chance, 0.03):
        yield chance.choice(TEXTS)


def _share(option: click.Parameter, command: click.Command) -> float:
    """Return how often an option is given: of many only some, or there is always one that is refused."""
    if option.required or option.name == "to":
        return 0.8
    return min(0.25, 1.5 / len(command.params))


def _value(chance: Random, parameter: click.Parameter) -> str:
    if isinstance(parameter.type, click.Choice) and values.often(chance, 0.8):
        return str(chance.choice(list(parameter.type.choices)))
    if parameter.name in FITTING and values.often(chance, 0.7):
        return chance.choice(FITTING[parameter.name])
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(("1", "2", "3", "10", "100"))
    if kind == 1:
        return chance.choice(("10s", "5m", "1d", "default", "mail", "x"))
    if kind == 2:
        return values.text(chance)
    return chance.choice(TEXTS)


def _fill(url: str) -> None:
    """Have something for every command to show: odd, dead, blocked, failed."""
    outbox, jobs, chance = Outbox(), Jobs(), Random(7)
    jobs.declare("t")
    with psycopg.connect(url) as conn:
        for number in range(40):
            key = values.some_text(chance) if number % 2 else None
            outbox.enqueue(
                conn, values.some_text(chance), values.json_value(chance), ordering_key=key, headers={"a": "é"}
            )
            jobs.enqueue(
                conn, "t", values.json_value(chance), headers={values.some_text(chance): values.text(chance)}
            )
            Inbox(values.some_text(chance, 20)).accept(conn, values.some_text(chance))
        conn.commit()
        for _ in range(4):
            claimed = outbox.claim(conn, values.some_text(chance) + "w", batch=5, lease=timedelta(seconds=60))
            outbox.mark_dead(conn, claimed, error=_odd_error(chance))
            conn.commit()
        outbox.claim(conn, "w2", batch=5)
        conn.commit()


def _odd_error(chance: Random) -> str:
    return values.text(chance) + "\x00\ud800\x1b[31m" + "x" * 5_000
