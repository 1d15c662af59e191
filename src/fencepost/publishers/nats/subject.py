"""Which NATS subject a message goes to: always one that a server accepts, whatever text its fields hold.

``{event_type}`` and the operator's own text may have several tokens, separated by dots; ``{queue}``,
``{aggregate_type}``, ``{aggregate_id}`` and ``{key}`` are one token each, dots encoded. In the fields, blanks,
``*``, ``>``, ``$``, ``%`` and everything but printable ASCII is percent-encoded as UTF-8 (``$`` begins the
server's own subjects), and an empty token becomes ``_``. A subject longer than 255 characters is cut to 238 and
ends in ``-`` and 16 hexadecimal digits of the SHA-256 of the whole.
"""

from __future__ import annotations

import re
from functools import lru_cache

from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.template import Template, shortened

MAX_SUBJECT_CHARS = 255
"""Far below the server's control line limit of 4096 bytes, past which it would cut the connection."""

_UNSAFE = re.compile(r"[^!-~]|[*>%$]")


class Subject:
    """A subject template such as ``shop.{event_type}``.

    Raises:
        ConfigError: unknown field, wildcard, blank, empty token, or too long.
    """

    def __init__(self, text: str) -> None:
        self._template = Template(text, "?subject=")
        if any(re.search(r"[^!-~]|[*>{}]", literal) for literal in self._template.literals):
            raise ConfigError(f"?subject={text!r}: the text between fields cannot hold blanks, braces, '*' or '>'")
        if not all(self._template.filled("x").split(".")):
            raise ConfigError(f"?subject={text!r}: a subject cannot start, end or go on with '.'")

    def of(self, message: Message) -> str:
        """Return the subject for a message."""
        subject = self._template.render(message, _field)
        if subject.startswith("_INBOX"):
            subject = "%5F" + subject[1:]  # where the answers to other clients' requests arrive
        return shortened(subject, MAX_SUBJECT_CHARS)


@lru_cache(1_024)
def _field(name: str, text: str) -> str:
    tokens = text.split(".") if name == "event_type" else [text]
    return ".".join(_token(token) for token in tokens)


def _token(text: str) -> str:
    return _UNSAFE.sub(_percent, text).replace(".", "%2E") or "_"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
