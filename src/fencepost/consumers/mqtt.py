"""MQTT 5, by paho-mqtt: ``handle(mqtt.incoming(client, message))`` in ``on_message``, with ``manual_ack=True``.

After the commit the message is acknowledged (PUBACK). MQTT has no way to give one back: after an error it stays
unacknowledged, and comes again when the client connects anew to its session (a client id, ``clean_start`` off, a
session expiry). So disconnect after an error; where the error leaves ``on_message``, paho's loop ends by itself.

aiomqtt acknowledges by itself, before anything is committed: `received` reads its messages, but what it
acknowledged is lost when the process dies.
"""

from __future__ import annotations

from typing import Any

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import MQTT_PREFIX, Received, received_from


def received(message: Any) -> Received:
    """Read a message of paho-mqtt or aiomqtt, or a `mqtt5.PublishPacket`.

    Raises:
        InvalidMessage: see `received_from`.
    """
    properties = getattr(message, "properties", None)
    if properties is not None:
        headers = getattr(properties, "UserProperty", [])
        content_type = getattr(properties, "ContentType", None)
    else:
        headers = getattr(message, "user_properties", [])
        content_type = getattr(message, "content_type", None)
    return received_from(headers, message.payload, content_type=content_type, prefix=MQTT_PREFIX)


def incoming(client: Any, message: Any) -> Incoming:
    """Return a message that paho-mqtt hands to ``on_message``.

    Args:
        client: a `paho.mqtt.client.Client` with ``manual_ack=True``.
        message: of a subscription with QoS 1 or 2; one of QoS 0 never comes again.

    Raises:
        InvalidMessage: see `received_from`. ``client.ack(message.mid, message.qos)`` gives it up.
    """
    found, mid, qos = received(message), message.mid, message.qos

    def ack() -> None:
        code = client.ack(mid, qos)
        if code != 0:
            raise ConnectionError(f"paho-mqtt cannot send the acknowledgement: {code!r}")

    return Incoming(found, ack)
