"""Plain redis-py: the entries of a stream, for a group, each with its effect once."""

import logging
import os
import time
from functools import partial
from typing import Any

import psycopg
import redis

from fencepost import Inbox
from fencepost.consumers import Consumer, Received
from fencepost.consumers.redis import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # redis://127.0.0.1:6379
STREAM, GROUP, WORKER = "order.created", "billing", "worker-1"
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
    client: Any = redis.Redis.from_url(BROKER, protocol=2)
    after = "0"  # first what this worker has read before and not acknowledged, then what is new
    while True:
        pages = client.xreadgroup(GROUP, WORKER, {STREAM: after}, count=10, block=5_000)
        entries = [entry for _, page in pages for entry in page]
        if not entries:
            after = ">"
        for entry_id, fields in entries:
            try:
                bill(incoming(client, STREAM, GROUP, entry_id, fields))  # acknowledged when it returns
            except Exception:
                log.exception("it stays pending")
                time.sleep(1)
                after = "0"


if __name__ == "__main__":
    main()
