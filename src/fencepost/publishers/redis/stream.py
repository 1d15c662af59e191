"""How messages become entries of Redis streams: fields, commands, a script for a key's run, what errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent
from fencepost.publishers.address import Address
from fencepost.publishers.base import Delivery
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.template import Template, shortened

OPTIONS = frozenset({"stream", "maxlen", "nomkstream", "max_bytes", "dedupe"}) | ENVELOPE_OPTIONS

DEFAULT_STREAM = "{event_type}"
PAYLOAD_FIELD = "payload"
MAX_STREAM_BYTES = 512
MAX_BYTES = 512 * 1024 * 1024
"""Redis's own default of ``proto-max-bulk-len``."""
MAX_FIELDS = 3_000
"""Lua hands at most about 8,000 values to one call; each field is two."""
MAX_SCRIPT_BYTES = 16 * 1024 * 1024
"""Of the messages of one script: the server serves nobody else meanwhile, and its query buffer ends at 1 GB."""
MAX_REMEMBERED_CHARS = 128
MAX_DEDUPE_SECONDS = 31 * 86_400

# ARGV: seconds to remember a message (0: not), then for each entry how many words XADD gets, and the words.
# KEYS: for each entry its stream, and with dedupe the key that remembers the message. That key is written again
# for a repeat, so that WAIT has a write to wait for.
SCRIPT = """
local seconds, at, answers = ARGV[1], 2, {}
local step = seconds == '0' and 1 or 2
for entry = 1, #KEYS / step do
  local words = tonumber(ARGV[at])
  local marker = step == 2 and KEYS[2 * entry]
  local id = marker and redis.call('GET', marker)
  if not id then
    id = redis.pcall('XADD', KEYS[step * (entry - 1) + 1], unpack(ARGV, at + 1, at + words))
  end
  if not id or type(id) == 'table' then
    answers[entry] = '-' .. (id and id.err or 'NOMKSTREAM no such stream')
    return answers
  end
  if marker then redis.call('SET', marker, id, 'EX', seconds) end
  answers[entry] = id
  at = at + words + 1
end
return answers
"""

Word = str | bytes | int


@dataclass(slots=True)
class Entry:
    """One message as XADD gets it."""

    place: int
    key: str | None
    stream: str
    marker: str
    """The key that remembers the message with ``dedupe``, else empty."""
    words: list[Word]
    size: int


class Writer:
    """Makes entries and commands.

    Raises:
        ConfigError: an option that cannot work.
    """

    def __init__(self, address: Address) -> None:
        self._envelope = Envelope(address, prefix=None)
        self._stream = Template(address.options.get("stream", DEFAULT_STREAM), "?stream=")
        self._max_bytes = address.count("max_bytes", MAX_BYTES, most=MAX_BYTES)
        given = "dedupe" in address.options
        self._dedupe = address.count("dedupe", 1, most=MAX_DEDUPE_SECONDS) if given else 0
        self._how = _how(address)

    def entry(self, place: int, message: Message, delivery: Delivery) -> Entry:
        """Return the entry for a message.

        Raises:
            Permanent: too large, or a header that cannot be sent.
        """
        outgoing = self._envelope.wrap(message, delivery, also_reserved={PAYLOAD_FIELD})
        size = len(outgoing.payload)
        if size > self._max_bytes:
            raise Permanent(f"the payload is {size} bytes; the limit is {self._max_bytes} (?max_bytes=)")
        if len(outgoing.headers) >= MAX_FIELDS:
            raise Permanent(f"{len(outgoing.headers)} headers; the limit is {MAX_FIELDS - 1}")
        words: list[Word] = [*self._how, "*", PAYLOAD_FIELD, outgoing.payload]
        for name, value in outgoing.headers.items():
            words += (name, value)
            size += len(name) + len(value)
        stream = stream_for(self._stream, message)
        marker = f"fencepost:{stream}:{message.message_id_text}" if self._dedupe else ""
        return Entry(place, message.ordering_key, stream, marker, words, size)

    def is_script(self, piece: Sequence[Entry]) -> bool:
        """Tell whether these are appended by the script, whose answer is a list, and not by a plain XADD."""
        return len(piece) > 1 or bool(self._dedupe)

    def command(self, piece: list[Entry]) -> list[Word]:
        """Return the command that appends these entries and stops at the first error."""
        if not self.is_script(piece):
            return ["XADD", piece[0].stream, *piece[0].words]
        keys: list[Word] = []
        words: list[Word] = [self._dedupe]
        for entry in piece:
            keys += [entry.stream, entry.marker] if self._dedupe else [entry.stream]
            words += [len(entry.words), *entry.words]
        return ["EVAL", SCRIPT, len(keys), *keys, *words]


def packed(commands: Iterable[Sequence[Word]]) -> list[bytes]:
    """Return the commands in the protocol of Redis, as redis-py packs them in six times the time."""
    parts: list[bytes] = []
    for words in commands:
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            if isinstance(word, bytes):
                parts += (b"$%d\r\n" % len(word), word, b"\r\n")
            elif isinstance(word, str) and len(word) > MAX_REMEMBERED_CHARS:
                parts.append(_as_bulk(word))
            else:
                parts.append(_remembered_bulk(word))
    return [b"".join(parts)]


def _as_bulk(word: str | int) -> bytes:
    encoded = str(word).encode("utf-8")
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)


# The names of headers, and most of their values, are the same in thousands of messages.
_remembered_bulk = lru_cache(1_024)(_as_bulk)


def turns(entries: Iterable[Entry]) -> list[list[list[Entry]]]:
    """Return the pipelines to send one after another, each of pieces that one command holds.

    A piece is a message without a key, or the messages of a key up to `MAX_SCRIPT_BYTES`; what a key has beyond
    that comes in the next pipeline, after the answers.
    """
    found: list[list[list[Entry]]] = [[]]
    last: dict[str, tuple[int, list[Entry], int]] = {}
    for entry in entries:
        if entry.key is None:
            found[0].append([entry])
            continue
        turn, piece, size = last.get(entry.key, (-1, [], MAX_SCRIPT_BYTES))
        if size + entry.size > MAX_SCRIPT_BYTES:
            turn, piece, size = turn + 1, [], 0
            if turn == len(found):
                found.append([])
            found[turn].append(piece)
        piece.append(entry)
        last[entry.key] = (turn, piece, size + entry.size)
    return found


_UNSAFE = re.compile(r"[^!-~]|%")


def stream_for(template: Template, message: Message) -> str:
    """Return the stream's key for a message, of at most 512 bytes.

    In fields, blanks, ``%`` and everything but printable ASCII is percent-encoded as UTF-8, and an empty one
    becomes ``_``. What is longer is cut, see `shortened`.
    """
    return shortened(template.render(message, _encoded), MAX_STREAM_BYTES)


@lru_cache(1_024)
def _encoded(_: str, text: str) -> str:
    return _UNSAFE.sub(_percent, text) or "_"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _how(address: Address) -> list[Word]:
    """Return the options that XADD gets before the id."""
    words: list[Word] = []
    choice = address.options.get("nomkstream", "off")
    if choice not in ("on", "off"):
        raise ConfigError(f"{address.display}: nomkstream must be on or off")
    if choice == "on":
        words.append("NOMKSTREAM")
    if "maxlen" in address.options:
        words += ["MAXLEN", "~", address.count("maxlen", 1, most=999_999_999)]
    return words


# Redis's error codes after which this server takes nothing from anybody just now, whatever the message.
UNAVAILABLE = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS", "OOM", "READONLY"}
)
# And after these the connection leads to the wrong server, or to one that does not know us any more.
MISLED = frozenset({"ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOAUTH", "READONLY"})

TOO_LARGE = "TOOLARGE"
"""Ours; the server's own text begins like that of any other protocol error. It closes the connection after it."""

HINTS: Mapping[str, str] = {
    "ASK": "Redis Cluster is not supported",
    "MOVED": "Redis Cluster is not supported",
    "NOPERM": "allow this user +xadd on this stream, and +eval for messages with an ordering key and with dedupe",
    "NOMKSTREAM": "create the stream, correct ?stream=, or leave out nomkstream=on",
    TOO_LARGE: "more than the server's proto-max-bulk-len: set ?max_bytes= below that",
    "WRONGTYPE": "the stream's key holds something else: correct ?stream=",
}

# redis-py takes these codes off the text and makes classes of them.
_CODES: Mapping[str, str] = {
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
}


_ENTRY_ID = re.compile(rb"[0-9]+-[0-9]+\Z")


def error_text(answer: Any) -> str:
    """Return an error's text as the server sent it, code first; empty where the answer is an entry's id.

    Args:
        answer: bytes (an id, or after ``-`` an error inside the script), an exception, or None: no such stream.
            Anything else is not the answer to an XADD, and said to be none.
    """
    if isinstance(answer, bytes) and answer.startswith(b"-"):
        # Redis before 7 puts a '-' of its own before the code.
        return answer.decode("utf-8", "replace").lstrip("-") or "an error without a text"
    if isinstance(answer, bytes) and _ENTRY_ID.match(answer):
        return ""
    if answer is None:
        return "NOMKSTREAM no such stream"
    if not isinstance(answer, Exception):
        return f"the answer is not an entry's id: {str(answer)[:100]}"
    text = " ".join(str(answer).split())[:500] or type(answer).__name__
    code = _CODES.get(type(answer).__name__, "")
    if "Protocol error: unauthenticated" in text:
        code = "NOAUTH"  # a server with a password reads no more than ten words from a stranger
    elif "Protocol error: invalid bulk length" in text:
        code = TOO_LARGE
    return text if text.startswith(code) else f"{code} {text}"


def code_of(text: str) -> str:
    """Return the code that an error's text begins with."""
    return text.partition(" ")[0]
