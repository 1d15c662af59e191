"""Plain confluent-kafka: the records of a topic, each with its effect once, in the order of their keys."""

import logging
import os
import time
from functools import partial

import confluent_kafka
import psycopg

from fencepost import Inbox
from fencepost.consumers import Consumer, Received
from fencepost.consumers.kafka import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # 127.0.0.1:9092
log = logging.getLogger("billing")

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = Consumer(Inbox("billing"), partial(psycopg.connect, DATABASE))


@consumer.handler
def bill(received: Received, connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


def main() -> None:
    kafka = confluent_kafka.Consumer(
        {
            "bootstrap.servers": BROKER,
            "group.id": "billing",
            "enable.auto.commit": False,  # the offset is committed after the database has committed
            "auto.offset.reset": "earliest",
        }
    )
    kafka.subscribe(["order.created"])
    while True:
        record = kafka.poll(1.0)
        if record is None:
            continue
        if record.error() is not None:
            raise confluent_kafka.KafkaException(record.error())
        # What no outbox sent ends the process (InvalidMessage): to go on behind it is a person's decision.
        message = incoming(kafka, record)
        try:
            bill(message)
        except Exception:
            log.exception("it will be polled again")
            time.sleep(1)


if __name__ == "__main__":
    main()
