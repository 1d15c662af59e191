"""What an error of librdkafka or of a broker means for a message."""

# ruff: noqa: SLF001 - a leading underscore is how the client marks errors of its own, apart from a broker's

from __future__ import annotations

from confluent_kafka import KafkaError

from fencepost.errors import Permanent, Retryable

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
REFUSED_RECORD = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP})
REFUSED_REQUEST = TOO_LARGE | REFUSED_RECORD
"""Said of a whole request, for the sake of one message in it or of all of them together."""
TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT})
NOT_SENT = frozenset({KafkaError._PURGE_QUEUE})

ALL_DOWN = frozenset({KafkaError._ALL_BROKERS_DOWN})
LOGIN_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
OUT_OF_STEP = frozenset(
    {
        KafkaError._FATAL,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    }
)
"""The broker and this producer do not agree about what it sent: a new producer starts afresh."""

_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_NO_REPORT = frozenset(
    {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._PURGE_INFLIGHT, KafkaError.REQUEST_TIMED_OUT}
)
_REMEDIES = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "may not be written: grant this user Write on it",
    KafkaError.TOPIC_EXCEPTION: "is refused: it may be one of Kafka's own, correct ?topic=",
    KafkaError.NOT_ENOUGH_REPLICAS: "has fewer replicas in sync than its min.insync.replicas",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "has fewer replicas in sync than its min.insync.replicas",
}


def failure_of(
    error: KafkaError | None, shown: str, topic: str, trouble: str, ended: str
) -> Permanent | Retryable:
    """Return the failure of one message.

    Args:
        error: its delivery report, or why librdkafka did not take it; None where the report is missing.
        shown: the destination, for people.
        topic: where it was going.
        trouble: why no broker can be reached, empty where one can.
        ended: why the client was given up, empty where it was not.
    """
    code = None if error is None else error.code()
    is_unavailable = bool(trouble)
    said = f": {trouble or ended}" if trouble or ended else ""
    if code is None or code in _NO_REPORT:
        text = f"no acknowledgement for topic {topic!r} before the deadline; it may be stored all the same{said}"
    elif code in NOT_SENT:
        text = f"not sent to topic {topic!r}{said}"
    elif code in TOO_LARGE:
        return Permanent(f"{shown}: larger than the client (rdkafka.message.max.bytes) or topic {topic!r} accepts")
    elif code in REFUSED_RECORD:
        return Permanent(f"{shown}: topic {topic!r} refuses the record; a compacted one takes none without a key")
    elif code in _NO_TOPIC:
        text = f"there is no topic {topic!r}: create it, or correct ?topic="
    elif code in _REMEDIES:
        text = f"topic {topic!r} {_REMEDIES[code]}"
    else:
        text = f"topic {topic!r}: {describe(error)}{said}"
    return Retryable(f"{shown}: {text}", unavailable=is_unavailable)


def describe(error: KafkaError | None) -> str:
    """Return an error's text with its name, by which it is found in Kafka's documentation."""
    return "" if error is None else f"{error.str()} ({error.name()})"
