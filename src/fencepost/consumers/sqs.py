"""SQS, by boto3 or aiobotocore: ``handle(sqs.incoming(client, queue_url, message))``.

Receive with ``MessageAttributeNames=["All"]``. After the commit the message is deleted. After an error it is left
alone: it comes again when its visibility time-out ends, as often as the queue's redrive policy says. That time-out
must be longer than a handler takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from
from fencepost.errors import InvalidMessage
from fencepost.publishers.aws.entry import ENCODING, HEADERS, decode_body

ENCODINGS = ("", "base64", "empty")


def received(message: Mapping[str, Any]) -> Received:
    """Read a message of ReceiveMessage, sent by ``sqs://``, or by ``sns://`` with raw delivery or without.

    Raises:
        InvalidMessage: see `received_from`; the attributes are missing, or the body is not what they say.
    """
    body = message.get("Body", "")
    attributes = _values(message.get("MessageAttributes"), "StringValue")
    if HEADERS not in attributes:
        body, attributes = _notification(body) or (body, attributes)
    if HEADERS not in attributes:
        raise InvalidMessage(
            f"there is no attribute {HEADERS}: receive with MessageAttributeNames=['All'], "
            "or fencepost did not send this message"
        )
    encoding = attributes.get(ENCODING, "")
    if encoding not in ENCODINGS:
        raise InvalidMessage(f"{ENCODING} must be one of {', '.join(ENCODINGS[1:])}, not {encoding[:60]!r}")
    try:
        headers = json.loads(attributes[HEADERS], object_pairs_hook=list)
        payload = decode_body(body, encoding)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{HEADERS}, {ENCODING} or the body cannot be read: {error}") from None
    if not isinstance(headers, list) or not all(isinstance(pair, tuple) for pair in headers):
        raise InvalidMessage(f"{HEADERS} must be a JSON object")
    return received_from(headers, payload)


def incoming(client: Any, queue_url: str, message: Mapping[str, Any]) -> Incoming:
    """Return a message of ReceiveMessage.

    Args:
        client: an SQS client of boto3 or aiobotocore.
        queue_url: where it was received.
        message: one of ``answer["Messages"]``.

    Raises:
        InvalidMessage: see `received`. Delete it to give it up, or leave it to the redrive policy.
    """
    found, receipt = received(message), message["ReceiptHandle"]
    return Incoming(found, lambda: client.delete_message(QueueUrl=queue_url, ReceiptHandle=receipt))


def _notification(body: object) -> tuple[str, dict[str, str]] | None:
    """Return text and attributes of what SNS wrapped, None where it is no notification."""
    try:
        document = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("Type") != "Notification":
        return None
    return document.get("Message", ""), _values(document.get("MessageAttributes"), "Value")


def _values(attributes: object, field: str) -> dict[str, str]:
    if not isinstance(attributes, dict):
        return {}
    found = {name: one.get(field) for name, one in attributes.items() if isinstance(one, dict)}
    return {name: value for name, value in found.items() if isinstance(value, str)}
