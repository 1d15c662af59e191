"""Plain boto3: the messages of an SQS queue, each with its effect once."""

import logging
import os
from functools import partial

import boto3  # type: ignore[import-untyped]  # has no types
import psycopg

from fencepost import Inbox
from fencepost.consumers import Consumer, Received
from fencepost.consumers.sqs import incoming

DATABASE = os.environ["DATABASE_URL"]
QUEUE = os.environ["BROKER_URL"]  # https://sqs.eu-west-1.amazonaws.com/123456789012/orders
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
    client = boto3.client("sqs")
    while True:
        answer = client.receive_message(
            QueueUrl=QUEUE,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=5,
            MessageAttributeNames=["All"],  # the headers are among them
        )
        for message in answer.get("Messages", []):
            try:
                bill(incoming(client, QUEUE, message))  # deleted when it returns
            except Exception:
                # Also one that no outbox sent: the queue's redrive policy puts it aside.
                log.exception("it comes again when its visibility time-out ends")


if __name__ == "__main__":
    main()
