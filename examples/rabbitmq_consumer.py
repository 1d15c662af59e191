"""Plain aiormq: the messages of a queue, each with its effect once. With aio-pika `incoming` is the same."""

import asyncio
import logging
import os
from functools import partial

import aiormq
import psycopg
from aiormq.abc import DeliveredMessage

from fencepost import AsyncInbox, InvalidMessage
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.rabbitmq import incoming

DATABASE = os.environ["DATABASE_URL"]
BROKER = os.environ["BROKER_URL"]  # amqp://guest:guest@127.0.0.1:5672
log = logging.getLogger("billing")

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = AsyncConsumer(AsyncInbox("billing"), partial(psycopg.AsyncConnection.connect, DATABASE))


@consumer.handler
async def bill(received: Received, connection: psycopg.AsyncConnection) -> None:
    await connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


async def take(message: DeliveredMessage) -> None:
    try:
        await bill(incoming(message))  # acknowledged when it returns
    except InvalidMessage:
        log.exception("not from an outbox: to the dead-letter exchange")
        await message.channel.basic_nack(message.delivery_tag or 0, requeue=False)
    except Exception:
        log.exception("it will come again")
        await asyncio.sleep(1)


async def main() -> None:
    connection = await aiormq.connect(BROKER)
    channel = await connection.channel()
    await channel.basic_qos(prefetch_count=10)
    await channel.basic_consume("order.created", take)
    await connection.closing  # ends with the connection: have it restarted


if __name__ == "__main__":
    asyncio.run(main())
