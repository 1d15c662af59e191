"""FastStream on RabbitMQ: each message with its effect once."""

import asyncio
import os
from functools import partial

import psycopg
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitMessage, RabbitQueue

from fencepost import AsyncInbox
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.faststream import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # amqp://guest:guest@127.0.0.1:5672

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, DATABASE))
broker = RabbitBroker(BROKER)
app = FastStream(broker)


@consumer.handler
async def bill(received: Received, connection: psycopg.AsyncConnection) -> None:
    await connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


# MANUAL: any other policy acknowledges by itself.
@broker.subscriber(
    RabbitQueue("order.created", declare=False),
    channel=Channel(prefetch_count=10),
    ack_policy=AckPolicy.MANUAL,
)
async def on_order(message: RabbitMessage) -> None:
    await bill(incoming(message))


if __name__ == "__main__":
    asyncio.run(app.run())
