"""The packets of MQTT 5, for `fencepost.publishers.mqtt.link`; mqtt5 writes and reads them.

In one respect what a broker says is taken less strictly than mqtt5 takes it: a reason that the standard does not
list for a packet is kept (mosquitto puts "packet too large" into a PUBACK). It is about one message, and what
cannot be read costs all of them the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fencepost.errors import Permanent

if TYPE_CHECKING:
    import mqtt5

    Packet: TypeAlias = mqtt5.Packet

CONNACK = 0x20
"""The first byte of what an MQTT broker says first."""

MAX_PAYLOAD_BYTES = 2**28 - 2**20
"""A packet has less than 2**28 bytes behind its fixed header (mqtt5 panics beyond), with topic and headers."""

_PUBACK, _DISCONNECT = 0x40, 0xE0
_REASON_AT = {CONNACK: 1, _PUBACK: 2, _DISCONNECT: 0}
"""Where the reason stands behind the fixed header, by the first byte."""
_UNSPECIFIED_ERROR = 0x80


class Malformed(Exception):
    """What came is not MQTT 5."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's word: 0 is success, 0x80 and above a failure."""

    code: int
    said: str | None = None

    def __str__(self) -> str:
        return f"{_name(self.code)} (0x{self.code:02X}){f': {self.said}' if self.said else ''}"


def connect(client_id: str, keep_alive: int, user: str | None, password: str | None) -> bytes:
    """Return a CONNECT for a session that ends with the connection.

    Raises:
        ConnectionError: user name or password cannot be sent.
    """
    import mqtt5

    try:
        # Not all of an environment variable need be UTF-8; Python keeps those bytes as surrogates.
        secret = None if password is None else password.encode("utf-8", "surrogateescape")
        packet = mqtt5.ConnectPacket(
            client_id, clean_start=True, keep_alive=keep_alive, username=user, password=secret
        )
    except ValueError:  # its text may show a part of them
        raise ConnectionError("user name and password can have 65,535 bytes each, of UTF-8") from None
    return packet.write()


def publish(
    topic: str, packet_id: int, payload: bytes, content_type: str | None, headers: list[tuple[str, str]]
) -> bytes:
    """Return a PUBLISH with QoS 1.

    Raises:
        Permanent: MQTT cannot carry it.
    """
    import mqtt5

    if len(payload) > MAX_PAYLOAD_BYTES:
        raise Permanent(f"the payload is {len(payload)} bytes; MQTT can carry {MAX_PAYLOAD_BYTES}")
    try:
        packet = mqtt5.PublishPacket(
            topic,
            payload,
            qos=mqtt5.QoS.AT_LEAST_ONCE,
            packet_id=packet_id,
            content_type=content_type,
            user_properties=headers,
        )
    except ValueError as error:
        raise Permanent(f"MQTT cannot carry the message: {error}") from None
    return packet.write()


def ping() -> bytes:
    import mqtt5

    return mqtt5.PingReqPacket().write()


def goodbye() -> bytes:
    import mqtt5

    return mqtt5.DisconnectPacket().write()


class Packets:
    """Cuts what arrives into packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Packet, Answer]]:
        """Yield the packets that are complete now, and what each says.

        Raises:
            Malformed: the next one cannot be read.
        """
        self._buffer += data
        while (found := _first(self._buffer)) is not None:
            packet, size, code = found
            del self._buffer[:size]
            yield packet, Answer(code, getattr(packet, "reason_str", None))


def _first(buffer: bytearray) -> tuple[Packet, int, int] | None:
    """Return the packet that a buffer begins with, its size and its reason; None where it is not complete."""
    try:
        packet, size = _read(buffer)
    except IndexError:
        return None
    except ValueError as error:
        return _with_any_reason(buffer, error)
    return packet, size, int(getattr(packet, "reason_code", 0))


def _with_any_reason(buffer: bytearray, refusal: ValueError) -> tuple[Packet, int, int]:
    """Read a packet that mqtt5 refused once more, in case that its reason is all that was wrong with it."""
    length_ends = next((place for place, byte in enumerate(buffer[1:5], start=1) if byte < 0x80), None)
    if buffer[0] not in _REASON_AT or length_ends is None:
        raise Malformed(str(refusal))
    place = length_ends + 1 + _REASON_AT[buffer[0]]
    other = buffer.copy()
    other[place : place + 1] = bytes([_UNSPECIFIED_ERROR])
    try:
        packet, size = _read(other)
    except (IndexError, ValueError):
        raise Malformed(str(refusal)) from None
    return packet, size, buffer[place]


def _read(buffer: bytearray) -> tuple[Packet, int]:
    import mqtt5

    try:
        with memoryview(buffer) as view:
            return mqtt5.read(view)
    except BaseException as error:
        # mqtt5 panics at text that is not UTF-8; PyO3 raises that past `except Exception`.
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ValueError("text that is not UTF-8") from None


def _name(code: int) -> str:
    import mqtt5

    for reasons in (mqtt5.DisconnectReasonCode, mqtt5.ConnAckReasonCode, mqtt5.PubAckReasonCode):
        try:
            return reasons(code).name.replace("_", " ").lower()
        except ValueError:
            continue
    return "reason"
