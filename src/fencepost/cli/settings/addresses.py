"""The store's address and the routes' targets: checked early, shown without their secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, unquote, urlsplit

from fencepost.errors import ConfigError
from fencepost.publishers.address import MASK, masked, scheme_of

STORE_FORM = "postgresql://USER@HOST:PORT/DATABASE or embedded:"

PYTHON_TARGET = "python:"
"""Starts a target that is an object in a module, ``python:package.module:object``."""

_VALUE = r"'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*"
_KEY_VALUE_FORM = re.compile(rf"\s*(?:\w+\s*=\s*(?:{_VALUE})\s*)+")
_KEY_VALUE_PAIR = re.compile(rf"(\w+)\s*=\s*({_VALUE})")
_SECRET_NAME = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


def check_store(address: str) -> str:
    """Return the address when libpq will understand it.

    Checked here, since libpq's own errors repeat the part of a password that they stumble over.

    Raises:
        ValueError: it is no address of a store; the text shows nothing of it but its scheme.
    """
    if address.startswith("embedded:"):
        if address.startswith("embedded://") and not address.startswith("embedded:///"):
            raise ValueError("write embedded:DIRECTORY, without //")
        return address
    if not _is_url(address):
        if _KEY_VALUE_FORM.fullmatch(address):
            return address
        raise ValueError(f"expected {STORE_FORM}")
    scheme = address.partition("://")[0]
    if re.fullmatch(r"(postgresql|postgres)\+\w+", scheme):
        raise ValueError("that is SQLAlchemy's form of an address: write postgresql:// without a driver")
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(f"no store has {masked(scheme)}:// addresses: expected {STORE_FORM}")
    _split(address)
    return address


def shown_store(address: str | None) -> str:
    """Return a checked address for people, without its secrets."""
    if address is None:
        return "not set"
    if address.startswith("embedded:"):
        return address
    if not _is_url(address):
        return _KEY_VALUE_PAIR.sub(lambda pair: f"{pair[1]}={_shown_value(pair[1], pair[2])}", address)
    parts = _split(address)
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = "&".join(f"{key}={_shown_value(key, value)}" for key, value in _options(parts.query))
    netloc = f"{name}{':' + MASK if colon else ''}{at}{hosts}"
    return f"{parts.scheme}://{netloc}{parts.path}{'?' + query if query else ''}"


def store_secrets(address: str) -> Iterator[str]:
    """Yield what must never be shown of a checked address."""
    if address.startswith("embedded:"):
        return
    if not _is_url(address):
        for pair in _KEY_VALUE_PAIR.finditer(address):
            if _SECRET_NAME.search(pair[1]):
                yield re.sub(r"\\(.)", r"\1", pair[2].strip("'"))
        return
    parts = _split(address)
    yield parts.netloc.rpartition("@")[0].partition(":")[2]
    yield from (value for key, value in _options(parts.query) if _SECRET_NAME.search(key))


def check_target(label: str, target: object) -> str:
    """Return the target of a route or a destination when it can be one.

    Args:
        label: the pattern or the name that it stands for.

    Raises:
        ValueError: it is neither a URL nor ``python:module:object``; nothing secret is shown.
    """
    if not isinstance(target, str):
        raise ValueError(f"expected a destination's URL as text for {label!r}")
    if target.startswith(PYTHON_TARGET):
        if not re.fullmatch(r"[\w.]+:[\w.]+", target.removeprefix(PYTHON_TARGET)):
            raise ValueError(f"expected python:package.module:object for {label!r}")
        return target
    try:
        scheme_of(target)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return target


def shown_target(target: str) -> str:
    """Return a target for people, without its secrets."""
    return target if target.startswith(PYTHON_TARGET) else masked(target)


def target_secrets(target: str) -> Iterator[str]:
    """Yield what must never be shown of a target."""
    if target.startswith(PYTHON_TARGET):
        return
    try:
        parts = urlsplit(target)
    except ValueError:
        return
    userinfo = parts.netloc.rpartition("@")[0]
    yield userinfo
    yield userinfo.partition(":")[2]
    yield from (value for key, value in _options(parts.query) if _is_secret(key, value))


def spellings(secret: str) -> set[str]:
    """Return a secret as it is written in a URL, and as it is meant."""
    return {secret, unquote(secret)} - {""}


def _is_url(address: str) -> bool:
    return "://" in address and "=" not in address.partition("://")[0]


def _split(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        fits = (
            not _CONTROL.search(address)
            and not _BAD_ESCAPE.search(address)
            and parts.netloc.count("@") <= 1
            and "@" not in parts.path
            and not parts.fragment
            and all("=" in pair for pair in parts.query.split("&") if pair)
            and all(urlsplit(f"//{host}").port != 0 for host in hosts)
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            "not a valid address; what is special in a user name or password must be percent-encoded "
            "(% as %25, @ as %40, : as %3A, / as %2F, # as %23, ? as %3F, a blank as %20)"
        )
    return parts


def _options(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        if key:
            yield key, value


def _is_secret(name: str, value: str) -> bool:
    """Tell secrets of a target from the names of variables and files that hold them, which errors have to name."""
    return bool(_SECRET_NAME.search(name)) and not name.endswith(("_env", "_file")) and value not in ("on", "off")


def _shown_value(name: str, value: str) -> str:
    return MASK if _SECRET_NAME.search(name) else value
