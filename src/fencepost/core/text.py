"""Text that comes in from outside: what no store can keep is refused, and nothing is ever cut to fit."""

from __future__ import annotations

from fencepost.errors import ConfigError, InvalidMessage

MAX_NAME_BYTES = 100


def checked_text(name: str, value: object, limit: int) -> str:
    """Return text that is neither empty nor longer than ``limit`` bytes of UTF-8.

    Raises:
        InvalidMessage: what is wrong, with ``name`` and the limit.
    """
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidMessage(f"{name} must not be empty")
    size = len(utf8(name, value))
    if size > limit:
        raise InvalidMessage(f"{name} has {size} bytes, more than the limit of {limit}")
    return plain(value)


def checked_name(what: str, value: object) -> str:
    """Return the name of a consumer or a receiver, 1 to 100 bytes.

    Raises:
        ConfigError: it is none.
    """
    try:
        return checked_text(what, value, MAX_NAME_BYTES)
    except InvalidMessage as error:
        raise ConfigError(str(error)) from None


def plain(value: str) -> str:
    """Return the characters themselves: ``str()`` of a member of a ``(str, Enum)`` class is its name."""
    return str.__str__(value)


def utf8(name: str, value: str) -> bytes:
    """Return text as UTF-8.

    Raises:
        InvalidMessage: it holds NUL or a lone surrogate.
    """
    if "\x00" in value:
        raise InvalidMessage(f"{name} holds a NUL character, which no store can keep: remove or encode it")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidMessage(f"{name} holds a lone surrogate, which is not text: remove or encode it") from None
