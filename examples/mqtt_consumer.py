"""Plain paho-mqtt: the messages of a session that stays, each with its effect once."""

import os
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fencepost import Inbox
from fencepost.consumers import Consumer, Received
from fencepost.consumers.mqtt import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = urlsplit(os.environ["BROKER_URL"])  # mqtt://127.0.0.1:1883

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = Consumer(Inbox("billing"), partial(psycopg.connect, DATABASE))


@consumer.handler
def bill(received: Received, connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


def on_connect(client: Client, *_: Any) -> None:
    client.subscribe("order/#", qos=1)


def on_message(client: Client, _: Any, message: MQTTMessage) -> None:
    bill(incoming(client, message))  # acknowledged when it returns; an error ends the loop below


def main() -> None:
    client = Client(CallbackAPIVersion.VERSION2, client_id="billing", protocol=MQTTv5, manual_ack=True)
    client.on_connect, client.on_message = on_connect, on_message
    session: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's are not typed
    session.SessionExpiryInterval = 7 * 86_400
    client.connect(BROKER.hostname or "127.0.0.1", BROKER.port or 1883, clean_start=False, properties=session)
    client.loop_forever()  # ends with an error: have it restarted, and what was not acknowledged comes again


if __name__ == "__main__":
    main()
