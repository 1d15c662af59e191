"""Where in a destination a message goes: a template such as ``shop.{event_type}``, read alike by all of them.

What a broker cannot hold is the destination's own business: it says how a field's text is encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from string import Formatter

from fencepost.core.records import Message
from fencepost.errors import ConfigError

MAX_TEMPLATE_CHARS = 128
DIGEST_CHARS = 16

_FIELDS: Mapping[str, Callable[[Message], str | None]] = {
    "event_type": lambda message: message.event_type,
    "queue": lambda message: message.queue,
    "aggregate_type": lambda message: message.aggregate_type,
    "aggregate_id": lambda message: message.aggregate_id,
    "key": lambda message: message.ordering_key if message.ordering_key is not None else message.aggregate_id,
}
FIELDS = tuple(_FIELDS)

Encode = Callable[[str, str], str]
"""From a field's name and its text (empty where the message has none) to what stands in its place."""


class Template:
    """Fixed text and fields in braces.

    Args:
        text: the template, such as ``shop.{event_type}``.
        option: where it was written, for errors, such as ``?subject=``.

    Raises:
        ConfigError: an unknown field, a format specification, no text at all, or too long.
    """

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option = text, option
        if not text or len(text) > MAX_TEMPLATE_CHARS:
            raise ConfigError(f"{option} must have 1 to {MAX_TEMPLATE_CHARS} characters")
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(f"{option}{text!r}: {error}") from None
        for _, name, spec, conversion in parsed:
            if name is not None and (name not in _FIELDS or spec or conversion):
                raise ConfigError(f"{option}{text!r}: fields are {', '.join(f'{{{each}}}' for each in FIELDS)}")
        self._parts = [(literal, name) for literal, name, _, _ in parsed]

    @property
    def literals(self) -> list[str]:
        """The fixed texts between the fields, for the destination to check."""
        return [literal for literal, _ in self._parts]

    @property
    def is_fixed(self) -> bool:
        """Whether it has no fields: every message goes to the same place."""
        return all(name is None for _, name in self._parts)

    def filled(self, text: str) -> str:
        """Return the template with ``text`` for each field, for the destination to check what it looks like."""
        return "".join(literal + ("" if name is None else text) for literal, name in self._parts)

    def render(self, message: Message, encode: Encode) -> str:
        """Return the place for a message, each field as ``encode(name, text)`` gives it."""
        return "".join(
            literal + ("" if name is None else encode(name, _FIELDS[name](message) or ""))
            for literal, name in self._parts
        )


def shortened(text: str, most: int) -> str:
    """Return ``text`` of at most ``most`` bytes of UTF-8: else its start, ``-`` and a digest of the whole.

    The digest is 16 hexadecimal digits of the SHA-256, so that two long texts with one start stay apart.
    """
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= most:
        return text
    start = encoded[: most - DIGEST_CHARS - 1].decode("utf-8", "ignore")
    return f"{start}-{hashlib.sha256(encoded).hexdigest()[:DIGEST_CHARS]}"
