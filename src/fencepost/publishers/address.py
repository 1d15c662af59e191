"""A destination's URL: read strictly, because a typo in it must not become a setting that is silently ignored.

User name, password and option values never appear in an error text or a ``repr``: see `masked`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencepost.errors import ConfigError

MASK = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_NO_PORT = re.compile(r":(?![0-9]{1,5}(?:[,/]|\Z))[^,/\]\[]+(?=[,/]|\Z)")
# Python's urlsplit drops tabs and line ends silently; a URL that holds any of these was damaged on the way.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a destination URL, percent-decoded where they are text (user name, password, options)."""

    display: str
    """The URL without secrets, for people."""
    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    """Host and port pairs; several where the URL lists them with commas. IPv6 without its brackets."""
    path: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def seconds(self, option: str, default: float, *, most: float = 3_600.0) -> float:
        """Return an option as a positive number of seconds.

        Raises:
            ConfigError: it is not a number, not above 0, or above ``most``.
        """
        text = self.options.get(option)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number <= most:
            raise ConfigError(f"{self.display}: {option} must be seconds above 0 and up to {most:g}")
        return number

    def count(self, option: str, default: int, *, most: int) -> int:
        """Return an option as a whole number from 1 to ``most``.

        Raises:
            ConfigError: it is not a whole number, or outside the range.
        """
        text = self.options.get(option)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise ConfigError(f"{self.display}: {option} must be a whole number from 1 to {most}")
        return int(text)


def scheme_of(url: str) -> str:
    """Return the scheme in lower case.

    Raises:
        ConfigError: the text does not start with a scheme and a colon.
    """
    scheme, colon, _ = url.partition(":")
    if not colon or not _SCHEME.match(scheme):
        raise ConfigError(f"{masked(url)!r} is not a destination URL: it must start with a scheme, like 'stdout:'")
    return scheme.lower()


def parse_address(url: str, *, options: Collection[str], prefixes: tuple[str, ...] = ()) -> Address:
    """Split a destination URL and check its query against the options that this destination knows.

    Args:
        url: the URL.
        options: the names of its options.
        prefixes: of names that are passed on to a client library, which knows them better; ``rdkafka.`` is one.

    Raises:
        ConfigError: not a URL, or an option that is unknown or given twice. Never shows a secret.
    """
    display = masked(url)
    scheme = scheme_of(url)
    if _FORBIDDEN.search(url):
        raise ConfigError(f"{display}: blanks and control characters must be percent-encoded in a URL")
    try:
        parts = urlsplit(url)
        userinfo, _, hosts = parts.netloc.rpartition("@")
        pairs = tuple(_host_and_port(text) for text in hosts.split(",")) if hosts else ()
    except ValueError:
        # Its own text would repeat the password that was taken for a port.
        raise ConfigError(
            f"{display} is not a valid URL (percent-encode the characters '/', '?', '#', '@' in a password)"
        ) from None
    if parts.fragment:
        raise ConfigError(f"{display}: a URL cannot have a '#' part here; write '#' in a password as %23")
    username, has_password, password = userinfo.partition(":")
    return Address(
        display=display,
        scheme=scheme,
        hosts=pairs,
        path=parts.path,
        username=unquote(username) if userinfo else None,
        password=unquote(password) if has_password else None,
        options=_options(parts.query, display, options, prefixes),
    )


def masked(url: str) -> str:
    """Return the URL fit for display: user information and query values become ``***``. Never raises."""
    scheme, colon, rest = url.partition(":")
    if not colon or not _SCHEME.match(scheme):
        # No URL at all: perhaps one without its scheme, or the key=value words of a database's address.
        return MASK if "@" in url or "=" in url else _printable(url)
    try:
        parts = urlsplit(url)
        _check_authority(parts, rest)
    except ValueError:
        # Probably an unencoded password; nothing before the last '@' can be trusted to be anything else.
        _, at, tail = rest.rpartition("@")
        slashes = "//" if rest.startswith("//") else ""
        rest = f"{slashes}{MASK}@{tail}" if at else rest
        rest, question, _ = rest.partition("?")
        # What is no port may be a password whose host was forgotten.
        rest = _NO_PORT.sub(f":{MASK}", rest)
        return _printable(f"{scheme}:{rest}{'?' + MASK if question else ''}")
    _, at, hosts = parts.netloc.rpartition("@")
    slashes = "//" if rest.startswith("//") else ""
    query = "&".join(f"{pair.partition('=')[0]}={MASK}" for pair in parts.query.split("&") if pair)
    text = f"{scheme}:{slashes}{MASK + '@' if at else ''}{hosts}{parts.path}"
    return _printable(text + (f"?{query}" if query else "") + (f"#{MASK}" if parts.fragment else ""))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _check_authority(parts: SplitResult, rest: str) -> None:
    """Raise ValueError unless the text before the path is surely what `urlsplit` took it for."""
    if not rest.startswith("//") and "@" in rest:
        raise ValueError("user information without //")
    before, at, _ = parts.path.rpartition("@")
    if at and "@" not in parts.netloc and (":" in parts.netloc + before or not parts.netloc):
        raise ValueError("perhaps a password of digits before a '/' in it, or a '/' too many before the password")
    for text in parts.netloc.rpartition("@")[2].split(","):
        _host_and_port(text)


def _host_and_port(text: str) -> tuple[str, int | None]:
    """Split ``host:port``; raise ValueError where the port is not one."""
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port


def _options(query: str, display: str, known: Collection[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known and not name.startswith(prefixes):
            listed = ", ".join([*sorted(known), *(f"{prefix}…" for prefix in prefixes)]) or "none"
            raise ConfigError(f"{display}: unknown option {name!r}; this destination knows: {listed}")
        if name in found:
            raise ConfigError(f"{display}: option {name!r} is given twice")
        found[name] = value
    return found
