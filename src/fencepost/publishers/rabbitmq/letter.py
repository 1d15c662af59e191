"""A message on its way to RabbitMQ: where it goes, and what the broker's answer means for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from fencepost.core.records import Message
from fencepost.errors import Permanent
from fencepost.publishers.rabbitmq.link import Lane, RabbitLink, mark_as_ours, said
from fencepost.publishers.template import Template, shortened

if TYPE_CHECKING:
    from pamqp.commands import Basic

MAX_SHORT_BYTES = 255
"""AMQP's short strings: routing keys and most properties. Bytes, not characters."""
HEADER_OVERHEAD = 800
"""The frame of the properties without the headers: content type and type of 255 bytes each, and small ones."""
SIZE_LIMIT = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
"""How RabbitMQ says that a message is too large, when it closes the channel."""

# Printable ASCII but for '*' and '#', which stand for words in bindings, and '%'.
_SAFE = "!\"$&'()+,-./:;<=>?@[\\]^_`{|}~"


@dataclass(slots=True, eq=False)
class Letter:
    """A message as it goes to the broker, and how its publish ended."""

    body: bytes
    exchange: str
    routing_key: str
    properties: Basic.Properties
    is_sent: bool = False
    """Whether any of it may have reached the broker."""
    outcome: Exception | None = None

    @property
    def header_bytes(self) -> int:
        """The size of its header frame, or a little more."""
        headers = self.properties.headers or {}
        return HEADER_OVERHEAD + sum(len(name) + len(str(value)) + 6 for name, value in headers.items())


def routing_key_for(template: Template, message: Message) -> str:
    """Return the routing key of a message; always one that AMQP can hold and that stays what it seems.

    ``{event_type}`` may have several words, separated by dots; the other fields are one word each, their dots
    encoded. In fields, blanks, ``*``, ``#``, ``%`` and everything but printable ASCII is percent-encoded as UTF-8,
    and an empty word becomes ``_``. A key that begins with ``amq.`` without the template saying so begins with
    ``%61mq.`` instead: those are the broker's own queues and its clients' reply addresses. A key of more than 255
    bytes is cut to 238 and ends in ``-`` and 16 hexadecimal digits of the SHA-256 of the whole.
    """
    key = template.render(message, _field)
    if key.startswith("amq.") and not template.text.startswith("amq."):
        key = "%61" + key[1:]
    return shortened(key, MAX_SHORT_BYTES)


@lru_cache(1_024)
def _field(name: str, text: str) -> str:
    words = text.split(".") if name == "event_type" else [text]
    return ".".join(_printable(word).replace(".", "%2E") or "_" for word in words)


def _printable(text: str) -> str:
    return quote(text, safe=_SAFE, errors="surrogatepass")


def short(text: str | None) -> str | None:
    """Return a text that AMQP's short strings can hold, else None."""
    return text if text is not None and len(text) <= MAX_SHORT_BYTES else None


class Again(Exception):
    """Nothing of it was sent, or a neighbour that is known broke the channel: send it again."""


class Suspect(Exception):
    """The channel broke, because of this letter or of a neighbour."""


async def confirmed(link: RabbitLink, lane: Lane, letter: Letter) -> None:
    """Send a letter and return when the broker has confirmed that a queue took it.

    Raises:
        Retryable, Permanent: how its publish failed.
        Again, Suspect: send it once more.
    """
    import aiormq.exceptions as errors
    from pamqp.commands import Basic

    mark_as_ours()
    await link.unblocked()
    if not lane.usable:
        raise Again
    letter.is_sent = True
    try:
        answer = await lane.channel.basic_publish(
            letter.body,
            exchange=letter.exchange,
            routing_key=letter.routing_key,
            properties=letter.properties,
            mandatory=True,
            wait=False,
        )
    except errors.PublishError:
        raise link.failure(_unroutable(letter)) from None
    except errors.DeliveryError:
        answer = None
    except Exception as error:  # noqa: BLE001 - it goes on, as what it means
        raise _failed(link, letter, error) from None
    if not isinstance(answer, Basic.Ack):
        raise link.failure(f"a queue refused the message (nack); is it full? It went to {place(letter)}")


def _failed(link: RabbitLink, letter: Letter, error: Exception) -> Exception:
    """Return how a publish fails by what aiormq raised; what nobody knows stays what it is."""
    import aiormq.exceptions as errors

    if isinstance(error, errors.ChannelInvalidStateError):
        return Again()
    if isinstance(error, errors.AMQPChannelError):
        return _broken(link, letter, said(error))
    if isinstance(error, errors.AMQPError | OSError | RuntimeError):
        return link.failure(f"connection lost before the confirm: {said(error)}")
    if isinstance(error, ValueError) and not link.usable:  # else it is ours
        return link.failure(f"no confirm, but what is no AMQP: {said(error)}")
    if type(error) is Exception and not error.args:  # how aiormq ends what waits at an orderly close
        return link.failure("connection closed before the confirm")
    return error


def place(letter: Letter) -> str:
    """Say where a letter goes."""
    if not letter.exchange:
        return f"queue {letter.routing_key!r}"
    return f"exchange {letter.exchange!r} with routing key {letter.routing_key!r}"


def _unroutable(letter: Letter) -> str:
    if not letter.exchange:
        return f"there is no {place(letter)}: create it, or choose with ?exchange= and ?routing_key="
    return f"no queue for {place(letter)}: bind one, or correct ?exchange= or ?routing_key="


def _broken(link: RabbitLink, letter: Letter, reason: str) -> Exception:
    """Say what follows for a letter from the broker's reason to close its channel."""
    limit = SIZE_LIMIT.search(reason)
    if limit is not None:
        link.most_bytes = min(link.most_bytes, int(limit[1]))
        return Again() if len(letter.body) <= link.most_bytes else too_large(letter, link.most_bytes)
    if "no exchange" in reason:  # of all messages alike: there is one exchange
        return link.failure(f"create the exchange, or correct ?exchange=: {reason}")
    return Suspect(reason)


def too_large(letter: Letter, most: int) -> Permanent:
    """Say that a letter is too large."""
    return Permanent(f"the payload is {len(letter.body)} bytes; RabbitMQ accepts {most} (max_message_size)")
