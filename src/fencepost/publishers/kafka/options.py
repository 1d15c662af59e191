"""What a ``kafka://`` URL says, as settings of librdkafka, and which topic a message goes to.

Three settings are not to be had otherwise, because "delivered" rests on them: ``acks=all``, an idempotent
producer, and a delivery report for every message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.credentials import LOGIN_OPTIONS, TLS_OPTIONS, Login, tls_context
from fencepost.publishers.envelope import ENVELOPE_OPTIONS
from fencepost.publishers.template import Template, shortened

DEFAULT_TIMEOUT = 8.0
DEFAULT_PORT = 9092
DEFAULT_TOPIC = "{event_type}"
DEFAULT_PARTITIONER = "murmur2_random"
PASSED_ON = "rdkafka."
OPTIONS = (
    ENVELOPE_OPTIONS
    | LOGIN_OPTIONS
    | TLS_OPTIONS
    | {"acks", "auto_create", "compression", "partitioner", "sasl", "timeout", "tls", "topic"}
)

MAX_TOPIC_CHARS = 249
PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

KEPT = frozenset(
    {
        "acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id",
        "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
        "message.timeout.ms", "delivery.timeout.ms", "queuing.strategy", "delivery.report.only.error",
        "partitioner", "msg_order_cmp", "bootstrap.servers", "metadata.broker.list", "security.protocol",
        "sasl.username", "sasl.password", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
        "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm", "compression.codec",
        "compression.type", "allow.auto.create.topics", "plugin.library.paths", "opaque", "log.queue",
        "enabled_events", "default_topic_conf", "interceptors", "logger",
    }
)  # fmt: skip
"""Properties of librdkafka that our promises rest on, or that an option of ours already sets."""
KEPT_PATTERN = re.compile(r".*_cb\Z|on_.*|test\..*|ssl_.*")

_ILLEGAL = re.compile(r"[^A-Za-z0-9._\-]")


class Order(Enum):
    """How messages are handed to one producer; see `fencepost.publishers.kafka.publisher`: there are three."""

    FREE = "free"
    """No two messages of one key at a time: five requests in flight, and each failure is one message's own."""
    STRICT = "strict"
    """Many of one key: one request in flight, and the first failure ends this producer."""
    SINGLE = "single"
    """One message in a request, so that a broker's refusal is about that message."""


class Settings:
    """The settings of one destination.

    Raises:
        ConfigError: an option is unknown, cannot work or would break a promise. Never shows a secret.
    """

    def __init__(self, url: str) -> None:
        self.address = address = parse_address(url, options=OPTIONS, prefixes=(PASSED_ON,))
        self.shown = address.display
        if not address.hosts or not all(host for host, _ in address.hosts):
            raise ConfigError(f"{self.shown}: name a broker, like kafka://127.0.0.1:9092")
        if address.path.strip("/"):
            raise ConfigError(f"{self.shown}: a Kafka URL has no path; choose the topic with ?topic=")
        self.timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self.topic = Topic(address.options.get("topic", DEFAULT_TOPIC))
        self._login = Login(address)
        self._passed_on = _passed_on(address)
        self._fixed = self._fixed_config()
        if address.options.get("acks", "all") not in ("all", "-1"):
            raise ConfigError(
                f"{self.shown}: acks must be all: with 0 or 1 a message is lost when its broker is lost after it "
                "was reported as delivered"
            )

    def config(self, order: Order) -> dict[str, object]:
        """Return the configuration of a new producer, with the login as it stands now.

        Raises:
            Retryable: a secret cannot be read just now.
        """
        user, password = self._login.read()
        login = {"sasl.username": user or "", "sasl.password": password or ""} if self._login.is_given else {}
        return self._fixed | login | self._timing() | self._passed_on | _ORDERS[order] | self._deadlines(order)

    def secrets(self) -> tuple[str | None, ...]:
        """Return what must never be shown, as it stands now; see `config`."""
        hidden = (value for name, value in self._passed_on.items() if re.search("password|secret|key|pem", name))
        return (*self._login.read(), *hidden)

    def _fixed_config(self) -> dict[str, object]:
        address = self.address
        return {
            "bootstrap.servers": ",".join(
                f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}" for host, port in address.hosts
            ),
            "client.id": "fencepost",
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": _one_of(address, "partitioner", PARTITIONERS, DEFAULT_PARTITIONER),
            "compression.codec": _one_of(address, "compression", COMPRESSIONS, "none"),
            "allow.auto.create.topics": _is_on(address, "auto_create"),
            **self._security(),
        }

    def _security(self) -> dict[str, object]:
        address = self.address
        tls, mechanism = _is_on(address, "tls"), address.options.get("sasl")
        files = {option: address.options[option] for option in ("ca", "cert", "key") if option in address.options}
        if files and not tls:
            raise ConfigError(f"{self.shown}: {', '.join(files)} need tls=on")
        if mechanism is None and self._login.is_given:
            raise ConfigError(f"{self.shown}: say how to log in, with sasl={' or '.join(MECHANISMS)}")
        if mechanism is not None and None in self._login.read():
            raise ConfigError(f"{self.shown}: sasl needs a user name and a password")
        config: dict[str, object] = {
            "security.protocol": f"{'sasl_' if mechanism is not None else ''}{'ssl' if tls else 'plaintext'}"
        }
        if tls:
            tls_context(address)  # librdkafka reads the files as well, and does not say which one is wrong
        if mechanism is not None:
            config["sasl.mechanisms"] = _one_of(address, "sasl", MECHANISMS, mechanism)
        places = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
        return config | {places[option]: path for option, path in files.items()}

    def _timing(self) -> dict[str, object]:
        """Return time limits that may be set otherwise: none of them can outlive a publish."""
        milliseconds = int(self.timeout * 1000)
        return {
            "linger.ms": 1,
            "socket.timeout.ms": min(max(milliseconds, 100), 300_000),
            "socket.connection.setup.timeout.ms": max(1_000, milliseconds // 2),
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": min(1_000, milliseconds // 8),
            # How long a topic may be unknown before its messages fail; a new one takes a moment to be known.
            "topic.metadata.propagation.max.ms": min(1_000, milliseconds // 4),
        }

    def _deadlines(self, order: Order) -> dict[str, object]:
        if order is Order.STRICT:
            # A time-out of its own would let the next message of the key go out after it: we end it all instead.
            return {"message.timeout.ms": 0}
        # Ahead of our own deadline, so that one partition that is stuck costs the others nothing. librdkafka is up
        # to a second late where a broker does not answer.
        return {"message.timeout.ms": max(10, int(1000 * max(self.timeout - 2, self.timeout * 0.6)))}


_ORDERS: Mapping[Order, dict[str, object]] = {
    Order.FREE: {"max.in.flight": 5},
    Order.STRICT: {"max.in.flight": 1, "enable.gapless.guarantee": True},
    Order.SINGLE: {"max.in.flight": 5, "batch.num.messages": 1, "linger.ms": 0},
}


class Topic:
    """A topic template such as ``shop.{event_type}``; `of` always gives a name that Kafka accepts.

    In fields, each byte of UTF-8 that a topic name cannot hold is ``_`` and two hexadecimal digits. An empty name
    is ``_``, and ``.`` and ``..`` are written ``_2E`` and ``_2E_2E``. Two underscores at the start are Kafka's
    own: the first becomes ``_5F``. A name of more than 249 characters is cut to 232, and ends in ``-`` and 16
    hexadecimal digits of the SHA-256 of the whole.

    Raises:
        ConfigError: the template cannot work.
    """

    def __init__(self, text: str) -> None:
        self._template = Template(text, "?topic=")
        if any(_ILLEGAL.search(literal) for literal in self._template.literals) or text.startswith("__"):
            raise ConfigError(
                f"?topic={text!r}: the text between fields is letters, digits, '.', '_' and '-', and two "
                "underscores at the start are Kafka's own"
            )

    def of(self, message: Message) -> str:
        """Return the topic for a message."""
        name = self._template.render(message, lambda _, text: _ILLEGAL.sub(_hexadecimal, text)) or "_"
        if not name.strip(".") and len(name) <= len(".."):
            name = name.replace(".", "_2E")
        if name.startswith("__"):
            name = "_5F" + name[1:]
        return shortened(name, MAX_TOPIC_CHARS)


def _hexadecimal(match: re.Match[str]) -> str:
    return "".join(f"_{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _passed_on(address: Address) -> dict[str, str]:
    found = {}
    for option, value in address.options.items():
        name = option.removeprefix(PASSED_ON)
        if name == option:
            continue
        if name in KEPT or KEPT_PATTERN.match(name):
            raise ConfigError(f"{address.display}: {option} cannot be set: fencepost sets it, or relies on it")
        found[name] = value
    return found


def _one_of(address: Address, option: str, known: tuple[str, ...], default: str) -> str:
    value = address.options.get(option, default)
    if value not in known:
        raise ConfigError(f"{address.display}: {option} must be {', '.join(known[:-1])} or {known[-1]}")
    return value


def _is_on(address: Address, option: str) -> bool:
    return _one_of(address, option, ("on", "off"), "off") == "on"
