"""No password in any output, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.program import Program, Result, bury, enqueue

Call = Callable[..., Result]

# A part of the password is as bad as all of it: libpq likes to repeat what it stumbles over.
SECRET = "hunter2"  # noqa: S105 - it opens nothing
WRONG = [
    f"postgresql://app:{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:{SECRET}@nowhere.invalid/shop",
    f"postgresql://app:x%40{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:x@{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:x/{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:x#{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:x?{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:x%{SECRET}@127.0.0.1:1/shop",
    f"postgresql://app:1/{SECRET}@127.0.0.1:1/shop",
    f"postgresql://127.0.0.1:1/shop?user=app&password={SECRET}",
    f"postgresql://app:{SECRET}@127.0.0.1:1/shop?sslmode=bogus",
    f"postgresql://app:{SECRET}@127.0.0.1:1/shop?nosuchoption=1",
    f"postgresql://app:{SECRET}@127.0.0.1:99999/shop",
    f"host=127.0.0.1 port=1 user=app password={SECRET}",
    f"host=127.0.0.1 port=1 password=x {SECRET}",
    f"host=127.0.0.1 port=1 password='{SECRET}",
    f"mysql://app:{SECRET}@127.0.0.1/shop",
    f"{SECRET}",
]
COMMANDS = [
    ("status",),
    ("status", "--watch", "--json"),
    ("init",),
    ("migrate", "--check"),
    ("dead", "list"),
    ("dead", "retry", "1"),
    ("purge", "--older-than", "1d"),
    ("keys",),
    ("pause", "mail"),
    ("queue", "list"),
    ("queue", "set", "mail", "--weight", "2", "--json"),
    ("doctor",),
    ("config", "show"),
    ("config", "check", "--json"),
]


@pytest.mark.parametrize("store", WRONG)
def test_not_when_the_store_is_wrong(call: Call, store: str) -> None:
    for arguments in COMMANDS:
        for debug in ((), ("--debug",)):
            result = call(*arguments, *debug, store=store)
            # A traceback of --debug may quote our own source, never the value.
            assert SECRET not in result.out + result.err, (arguments, debug)


@pytest.mark.parametrize("store", WRONG[:2])
def test_not_from_the_environment_or_the_file(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    folder.joinpath("fencepost.toml").write_text(
        f'store = "{store}"\n[routes]\n"*" = "https://u:{SECRET}@h/?x={SECRET}"\n'
    )
    for arguments in (*COMMANDS, ("dispatch",)):
        result = call(*arguments)
        assert SECRET not in result.out + result.err
    monkeypatch.setenv("FENCEPOST_STORE", store)
    monkeypatch.setenv("FENCEPOST_ROUTES", f"*=nats://u:{SECRET}@h?bogus={SECRET}")
    for arguments in (*COMMANDS, ("dispatch",)):
        result = call(*arguments)
        assert SECRET not in result.out + result.err


def test_not_when_the_password_is_wrong(call: Call, store: str) -> None:
    address = urlsplit(store)
    wrong = address._replace(netloc=f"postgres:{SECRET}@{address.hostname}:{address.port}").geturl()
    for arguments in COMMANDS[:-2]:
        result = call(*arguments, "--debug", store=wrong)
        assert (result.code, SECRET in result.out + result.err) == (3, False)
        assert "password authentication failed" in result.err
        assert "check the user and password in postgresql://postgres:***@" in result.err


def test_not_when_all_is_well(
    call: Call, configured: Program, store: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_STORE", store)
    password = str(urlsplit(store).password)
    folder.joinpath("leaky.py").write_text(
        "import logging, os\n"
        "def publish(message):\n"
        "    address = os.environ['FENCEPOST_STORE']\n"
        "    logging.getLogger('leaky').warning('using %s', address)\n"
        f"    raise RuntimeError(address, {password!r})\n"
    )
    bury(store, error=f"could not log in with {password}")
    enqueue(store)
    leaky = ("dispatch", "--once", "--publisher", "leaky:publish", "--log-level", "debug", "--max-attempts", "2")
    results = [
        call(*arguments) for arguments in (*COMMANDS[2:], ("dead", "show", "1"), ("dead", "show", "1", "--json"))
    ]
    results += [configured.run(*leaky, "--backoff-base", "1ms"), configured.run(*leaky, "--log-json")]
    results += [call("dead", "list"), call("dead", "list", "--json")]
    printed = "".join(result.out + result.err for result in results)
    assert "could not log in with ***" in printed
    assert "using postgresql://postgres:***@" in printed
    assert "RuntimeError" in printed
    assert password not in printed
    assert password not in folder.joinpath("fencepost.toml").read_text()
