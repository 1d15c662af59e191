"""A connection to an MQTT 5 broker, for `fencepost.publishers.mqtt`: messages out, acknowledgements back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, cast

from fencepost.errors import Permanent, Retryable
from fencepost.publishers.credentials import redacted
from fencepost.publishers.mqtt import packets

if TYPE_CHECKING:
    import mqtt5

KEEP_ALIVE = 30
MAX_PACKET_ID = 65_535
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
UNLIMITED = 268_435_460
"""The largest packet that MQTT has: 28 bits of length, and the fixed header."""

NO_SUBSCRIBERS = 0x10
UNSUPPORTED_VERSION = 0x84
NOT_AUTHORIZED = 0x87
HOPELESS = frozenset({0x81, 0x90, 0x95, 0x99})
"""What no retry mends: malformed, topic name invalid, packet too large, payload format invalid."""
ABOUT_A_MESSAGE = HOPELESS | {0x82, NOT_AUTHORIZED, 0x9B}
"""Why a broker may end a connection on account of one message."""


@dataclass(slots=True, eq=False)
class Letter:
    """A message as it goes to the broker, and how its publish ended."""

    topic: str
    payload: bytes
    content_type: str | None
    headers: list[tuple[str, str]]
    is_sent: bool = False
    """Whether any of it may have reached the broker."""
    outcome: Exception | None = None


class Again(Exception):
    """Nothing of it was sent: send it on another connection."""


class Suspect(Exception):
    """The broker ended the connection, perhaps because of this letter, perhaps because of another in flight."""


class Refused(ConnectionError):
    """The broker does not let us in."""


class MqttLink(asyncio.Protocol):
    """One connection. Errors show no secret, although a broker may repeat one."""

    def __init__(self, shown: str, secrets: Sequence[str | None]) -> None:
        loop = asyncio.get_running_loop()
        self._shown, self._secrets, self._loop = shown, secrets, loop
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done as soon as the connection is closed, by whichever side."""
        self.came_back = 0
        """How many packets came back so far. Bytes that never become one are no sign of life."""
        self._has_spoken = False
        self.most_bytes = UNLIMITED
        """The largest packet that the broker takes."""
        self._transport: asyncio.Transport | None = None
        self._packets = packets.Packets()
        self._welcome: asyncio.Future[tuple[mqtt5.ConnAckPacket, packets.Answer]] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[packets.Answer]] = {}
        """By packet identifier. One that is given up keeps its place: its acknowledgement may still come."""
        self._ids = cycle(range(1, MAX_PACKET_ID + 1))
        self._room = asyncio.Semaphore(MAX_PACKET_ID)
        self._queueing = 0
        self._farewell: packets.Answer | None = None
        self._unreadable = ""
        """What was wrong with what came, where the connection was given up for it."""
        self._alarm: asyncio.TimerHandle | None = None
        self._is_dropped = False
        """Whether it was us who gave the connection up, so that no message is to blame."""
        self.is_welcome = False
        """Whether the broker let us in."""

    @property
    def usable(self) -> bool:
        return not self.gone.done()

    def failure(self, text: str, *, unavailable: bool = False) -> Retryable:
        return Retryable(f"{self._shown}: {redacted(text, self._secrets)}", unavailable=unavailable)

    async def log_in(self, client_id: str, user: str | None, password: str | None) -> None:
        """Send CONNECT, and note what the broker allows.

        Raises:
            Refused: it does not let us in, or only with less than we need.
        """
        self._write(packets.connect(client_id, KEEP_ALIVE, user, password))
        allowed, answer = await self._welcome
        if answer.code:
            old = answer.code == UNSUPPORTED_VERSION
            raise Refused("it does not speak MQTT 5" if old else f"it refused the connection: {answer}")
        if allowed.max_qos == 0:
            raise Refused("it takes QoS 0 only, which acknowledges nothing: allow QoS 1")
        self.is_welcome = True
        self.most_bytes = allowed.max_packet_size or UNLIMITED
        self._room = asyncio.Semaphore(allowed.receive_max)
        self._ping(allowed.server_keep_alive or KEEP_ALIVE, self.came_back)

    async def acknowledged(self, letter: Letter) -> packets.Answer:
        """Send a letter and return the broker's acknowledgement of it.

        Raises:
            Again, Suspect: the connection was lost before it; send it once more.
            Retryable, Permanent: so it was, and there is nothing that can be done now.
        """
        self._queueing += 1
        try:
            await self._room.acquire()
        finally:
            self._queueing -= 1
        if self.gone.done() or self._transport is None or self._transport.is_closing():
            raise self._lost(letter)
        try:
            answer = self._sent(letter, self._transport)
        except Permanent:
            self._room.release()
            raise
        try:
            return await answer
        except ConnectionError:
            raise self._lost(letter) from None

    def _sent(self, letter: Letter, transport: asyncio.Transport) -> asyncio.Future[packets.Answer]:
        """Send a letter and return its answer to be; no copy of its payload is kept until that comes.

        Raises:
            Permanent: the broker cannot take it, and would end the connection.
        """
        packet_id = next(each for each in self._ids if each not in self._waiting)
        packet = packets.publish(letter.topic, packet_id, letter.payload, letter.content_type, letter.headers)
        if len(packet) > self.most_bytes:
            raise Permanent(
                f"the message is {len(packet)} bytes with its headers; "
                f"the broker accepts {self.most_bytes} (maximum packet size)"
            )
        answer = self._waiting[packet_id] = self._loop.create_future()
        letter.is_sent = True
        transport.write(packet)
        return answer

    async def end(self) -> None:
        self._is_dropped = True
        if self._transport is not None:
            self._write(packets.goodbye())
            self._transport.close()
            await self.gone

    def abort(self) -> None:
        self._is_dropped = True
        self._drop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # it is one; uvloop's do not inherit from it
        self._confirm_at_once()

    def _confirm_at_once(self) -> None:
        """Have the kernel confirm what came without its usual delay (Linux), which it falls back to in between.

        A broker that joins small packets (Nagle; mosquitto unless ``set_tcp_nodelay`` is set) holds each
        acknowledgement back until the one before it is confirmed: 40 ms for every few messages.
        """
        if QUICK_ACK is not None and self._transport is not None:
            peer = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # closed already
                peer.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)

    def data_received(self, data: bytes) -> None:
        self._confirm_at_once()
        if not self._has_spoken and data[0] != packets.CONNACK:
            self._refuse("it does not speak MQTT")
            self._drop()
            return
        self._has_spoken = True
        try:
            for packet, answer in self._packets.feed(data):
                self.came_back += 1
                self._handle(packet, answer)
        except packets.Malformed as error:
            self._refuse(f"it does not speak MQTT 5 ({error})")
            self._unreadable = str(error)
            self._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _handle(self, packet: mqtt5.Packet, answer: packets.Answer) -> None:
        import mqtt5

        if isinstance(packet, mqtt5.PubAckPacket):
            waiting = self._waiting.pop(packet.packet_id, None)
            if waiting is not None:
                self._room.release()
                if not waiting.done():
                    waiting.set_result(answer)
        elif isinstance(packet, mqtt5.ConnAckPacket):
            if not self._welcome.done():
                self._welcome.set_result((packet, answer))
        elif isinstance(packet, mqtt5.DisconnectPacket):
            self._farewell = answer
            self._drop()

    def _refuse(self, text: str) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(Refused(text))
            self._welcome.exception()  # nobody may be waiting

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.gone.done():
            return
        self.gone.set_result(None)
        if self._alarm is not None:
            self._alarm.cancel()
        said = f": {self._farewell}" if self._farewell is not None else " during the login"
        self._refuse(f"it closed the connection{said}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError())
        for _ in range(self._queueing):
            self._room.release()

    def _lost(self, letter: Letter) -> Exception:
        farewell = self._farewell
        said = f": {farewell}" if farewell is not None else ""
        if self._unreadable:
            said = f": what came cannot be read ({self._unreadable})"
        if self._is_dropped:
            unsent = "" if letter.is_sent else "not sent: "
            return self.failure(f"{unsent}connection given up before the acknowledgement")
        if not letter.is_sent:
            return Again()
        if len(self._waiting) > 1:
            return Suspect(f"connection lost before the acknowledgement{said}")
        if farewell is not None and farewell.code in ABOUT_A_MESSAGE:
            return self.refusal(farewell, letter)
        return self.failure(f"connection lost before the acknowledgement of topic {letter.topic!r}{said}")

    def refusal(self, answer: packets.Answer, letter: Letter) -> Exception:
        """Return how a publish failed that the broker refused with this answer."""
        text = f"refused for topic {letter.topic!r}: {answer}"
        if answer.code in HOPELESS:
            return Permanent(redacted(text, self._secrets))
        if answer.code == NOT_AUTHORIZED:
            return self.failure(f"{text}; allow this user to write to the topic")
        return self.failure(text)

    def _ping(self, seconds: float, before: int) -> None:
        """Ask for a sign of life in each half of the keep-alive time, and end a connection that gives none."""
        if self.came_back == before and self._alarm is not None:
            self._drop()
            return
        self._write(packets.ping())
        self._alarm = self._loop.call_later(seconds / 2, self._ping, seconds, self.came_back)

    def _write(self, packet: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(packet)
