"""FastStream on Redis streams: each message with its effect once."""

import asyncio
import os
from functools import partial

import psycopg
from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, RedisStreamMessage, StreamSub

from fencepost import AsyncInbox
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.faststream import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # redis://127.0.0.1:6379

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, DATABASE))
broker = RedisBroker(BROKER)
app = FastStream(broker)


@consumer.handler
async def bill(received: Received, connection: psycopg.AsyncConnection) -> None:
    await connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


async def on_order(message: RedisStreamMessage) -> None:
    await bill(incoming(message))


# MANUAL: any other policy acknowledges by itself. The second subscriber takes over what nobody acknowledged.
orders = StreamSub("order.created", group="billing", consumer="worker-1")
left = StreamSub("order.created", group="billing", consumer="worker-1", min_idle_time=1_000)
for stream in (orders, left):
    broker.subscriber(stream=stream, ack_policy=AckPolicy.MANUAL)(on_order)


if __name__ == "__main__":
    asyncio.run(app.run())
