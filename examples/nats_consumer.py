"""Plain nats-py: the messages of a JetStream stream, each with its effect once."""

import asyncio
import logging
import os
from functools import partial

import nats
import psycopg
from nats.aio.msg import Msg

from fencepost import AsyncInbox, InvalidMessage
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.nats import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # nats://127.0.0.1:4222
log = logging.getLogger("billing")

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, DATABASE))


@consumer.handler
async def bill(received: Received, connection: psycopg.AsyncConnection) -> None:
    await connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


async def take(message: Msg) -> None:
    try:
        await bill(incoming(message))  # acknowledged when it returns
    except InvalidMessage:
        log.exception("not from an outbox, given up")
        await message.term()
    except Exception:
        log.exception("it will come again")


async def main() -> None:
    client = await nats.connect(BROKER)
    orders = await client.jetstream().pull_subscribe("order.*", durable="billing")
    while True:
        try:
            messages = await orders.fetch(10, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            await take(message)


if __name__ == "__main__":
    asyncio.run(main())
