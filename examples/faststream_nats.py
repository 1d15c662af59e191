"""FastStream on NATS JetStream: each message with its effect once."""

import asyncio
import os
from functools import partial

import psycopg
from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub

from fencepost import AsyncInbox
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.faststream import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # nats://127.0.0.1:4222

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, DATABASE))
broker = NatsBroker(BROKER)
app = FastStream(broker)


@consumer.handler
async def bill(received: Received, connection: psycopg.AsyncConnection) -> None:
    await connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


# MANUAL: any other policy acknowledges by itself.
@broker.subscriber(
    "order.*",
    stream=JStream("ORDERS", declare=False),
    durable="billing",
    pull_sub=PullSub(batch_size=10),
    ack_policy=AckPolicy.MANUAL,
)
async def on_order(message: NatsMessage) -> None:
    await bill(incoming(message))


if __name__ == "__main__":
    asyncio.run(app.run())
