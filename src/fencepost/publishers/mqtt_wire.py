"""The packets of MQTT 5 (OASIS standard, 2019) that a publisher with QoS 1 needs; no input or output here.

Our own, and small: aiomqtt drops the reason code of a PUBACK and connects in a thread that cannot be given up,
and paho-mqtt below it minds neither the broker's Receive Maximum nor its Maximum Packet Size, and queues what it
cannot send yet, to send it whenever it can.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# First byte of each packet: its type and its flags.
CONNACK, PUBLISH_QOS1, PUBACK, PINGRESP, DISCONNECT = 0x20, 0x32, 0x40, 0xD0, 0xE0
PING = b"\xc0\x00"
GOODBYE = b"\xe0\x00"
VERSION = 5

SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, MAXIMUM_QOS, MAXIMUM_PACKET_SIZE = 0x13, 0x21, 0x24, 0x27
REASON_STRING, CONTENT_TYPE, USER_PROPERTY = 0x1F, 0x03, 0x26

_BYTE, _TWO, _FOUR, _TEXT, _PAIR = range(5)
_KINDS: Mapping[int, int] = {
    **dict.fromkeys((0x24, 0x25, 0x28, 0x29, 0x2A), _BYTE),
    **dict.fromkeys((0x13, 0x21, 0x22), _TWO),
    **dict.fromkeys((0x11, 0x27), _FOUR),
    **dict.fromkeys((0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F), _TEXT),
    USER_PROPERTY: _PAIR,
}
"""What a broker may say in CONNACK, PUBACK and DISCONNECT, by the form of its value (section 2.2.2.2)."""

REASONS: Mapping[int, str] = {
    0x10: "no matching subscribers",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9F: "connection rate exceeded",
}


class Malformed(Exception):
    """What came is not MQTT 5."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's word: 0 is success, 0x80 and above a failure."""

    code: int
    properties: Mapping[int, int | str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = self.properties.get(REASON_STRING)
        return f"{REASONS.get(self.code, 'reason')} (0x{self.code:02X}){f': {said}' if said else ''}"


def connect(client_id: str, keep_alive: int, user: str | None, password: str | None) -> bytes:
    """Return a CONNECT for a session that ends with the connection."""
    flags = 0x02 | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    credentials = b"".join(_text(each) for each in (user, password) if each is not None)
    head = _text("MQTT") + bytes([VERSION, flags]) + struct.pack("!H", keep_alive) + b"\x00"
    return _packet(0x10, head + _text(client_id) + credentials)


def properties(content_type: str | None, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the properties of a PUBLISH, with their length before them."""
    found = [bytes([USER_PROPERTY]) + _text(name) + _text(value) for name, value in headers]
    if content_type is not None:
        found.append(bytes([CONTENT_TYPE]) + _text(content_type))
    block = b"".join(found)
    return _variable(len(block)) + block


def publish(topic: str, packet_id: int, block: bytes, payload: bytes) -> bytes:
    """Return a PUBLISH with QoS 1; ``block`` is what `properties` returned."""
    return _packet(PUBLISH_QOS1, _text(topic) + struct.pack("!H", packet_id) + block, payload)


def answer(body: bytes) -> Answer:
    """Return what a PUBACK says behind its packet identifier, a CONNACK behind its flags, or a DISCONNECT.

    Raises:
        Malformed: it cannot be read.
    """
    if not body:
        return Answer(0)
    try:
        return Answer(body[0], dict(_properties(body[1:])))
    except (IndexError, struct.error, UnicodeDecodeError, KeyError):
        raise Malformed("a packet that cannot be read") from None


class Packets:
    """Cuts what arrives into packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the packets that are complete now: the first byte, and the body.

        Raises:
            Malformed: no packet can begin like this.
        """
        self._buffer += data
        while (size := _packet_size(self._buffer)) is not None and len(self._buffer) >= sum(size):
            start, length = size
            packet = bytes(self._buffer[: start + length])
            del self._buffer[: start + length]
            yield packet[0], packet[start:]


def _packet_size(buffer: bytearray) -> tuple[int, int] | None:
    """Return the length of the fixed header, and of what follows; None where the header is not complete."""
    length = 0
    for place, byte in enumerate(buffer[1:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return place + 2, length
    if len(buffer) >= 5:
        raise Malformed("a packet length of more than four bytes")
    return None


def _packet(first: int, *parts: bytes) -> bytes:
    return b"".join((bytes([first]), _variable(sum(map(len, parts))), *parts))


def _variable(number: int) -> bytes:
    """Return a number of up to 28 bits, seven in a byte, the lowest first (section 1.5.5)."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return struct.pack("!H", len(encoded)) + encoded


def _properties(data: bytes) -> Iterator[tuple[int, int | str]]:
    if not data:
        return
    length, place = 0, 0
    while True:
        length |= (data[place] & 0x7F) << (7 * place)
        place += 1
        if data[place - 1] < 0x80:
            break
    end = place + length
    if end > len(data):
        raise IndexError
    while place < end:
        identifier = data[place]
        value, place = _value(data, place + 1, _KINDS[identifier])
        yield identifier, value


def _value(data: bytes, place: int, kind: int) -> tuple[int | str, int]:
    if kind == _BYTE:
        return data[place], place + 1
    if kind == _TWO:
        return int(struct.unpack_from("!H", data, place)[0]), place + 2
    if kind == _FOUR:
        return int(struct.unpack_from("!I", data, place)[0]), place + 4
    size = struct.unpack_from("!H", data, place)[0]
    text = data[place + 2 : place + 2 + size].decode("utf-8", "replace")
    if kind == _PAIR:
        _, place = _value(data, place + 2 + size, _TEXT)
        return text, place
    return text, place + 2 + size
