"""From a URL to the publisher that answers to its scheme.

Schemes come from the entry points of the group ``fencepost.publishers`` (PyPA entry points specification), so
a package adds a destination with one line of its metadata. The destinations of fencepost itself also work
from a source tree that was never installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fencepost.errors import ConfigError
from fencepost.publishers.address import masked, scheme_of
from fencepost.publishers.base import DestinationPublisher

__all__ = ["known_schemes", "masked", "publisher_for"]

GROUP = "fencepost.publishers"

BUILT_IN: Mapping[str, str] = {
    "amqp": "fencepost.publishers.rabbitmq.publisher:RabbitPublisher",
    "amqps": "fencepost.publishers.rabbitmq.publisher:RabbitPublisher",
    "http": "fencepost.publishers.http.publisher:HttpPublisher",
    "https": "fencepost.publishers.http.publisher:HttpPublisher",
    "kafka": "fencepost.publishers.kafka.publisher:KafkaPublisher",
    "mqtt": "fencepost.publishers.mqtt.publisher:MqttPublisher",
    "mqtts": "fencepost.publishers.mqtt.publisher:MqttPublisher",
    "nats": "fencepost.publishers.nats.publisher:NatsPublisher",
    "redis": "fencepost.publishers.redis.publisher:RedisPublisher",
    "rediss": "fencepost.publishers.redis.publisher:RedisPublisher",
    "sns": "fencepost.publishers.aws.sns:SnsPublisher",
    "sqs": "fencepost.publishers.aws.sqs:SqsPublisher",
    "stdout": "fencepost.publishers.stdout:StdoutPublisher",
}
EXTRAS = (
    "pip install 'fencepost[http]' for http and https, 'fencepost[rabbitmq]' for amqp and amqps, "
    "'fencepost[aws]' for sqs and sns, and kafka, mqtt, nats, redis by their names"
)


def publisher_for(url: str) -> DestinationPublisher:
    """Return a new publisher for a destination URL.

    Raises:
        ConfigError: not a URL, a scheme nobody answers to, an option the destination does not know, a client
            library that is not installed, or a plug-in that cannot be loaded. Never shows a secret.
    """
    scheme = scheme_of(url)
    targets = _targets()
    if scheme not in targets:
        raise ConfigError(
            f"no publisher for {scheme!r} ({masked(url)}); known schemes: {', '.join(sorted(targets))}. "
            f"Client libraries come with an extra ({EXTRAS}); other schemes with a package that has an "
            f"entry point in the group {GROUP!r}"
        )
    made = _load(scheme, targets[scheme])(url)
    if not isinstance(made, DestinationPublisher):
        raise ConfigError(f"{targets[scheme]}, which answers to {scheme!r}, is not a DestinationPublisher")
    return made


def known_schemes() -> tuple[str, ...]:
    """Return the schemes that `publisher_for` answers to, sorted; their libraries may still be missing.

    Raises:
        ConfigError: two packages claim the same scheme.
    """
    return tuple(sorted(_targets()))


def _targets() -> dict[str, str]:
    """Return scheme to ``module:class``. An installed package may replace a built-in destination."""
    found: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        scheme, target = entry.name.lower(), entry.value.replace(" ", "")
        if target == BUILT_IN.get(scheme):
            continue
        if found.setdefault(scheme, target) != target:
            raise ConfigError(f"two packages answer to {scheme!r}: {found[scheme]} and {target}; uninstall one")
    return {**BUILT_IN, **found}


def _load(scheme: str, target: str) -> Any:
    try:
        loaded = EntryPoint(name=scheme, value=target, group=GROUP).load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{target}, which answers to {scheme!r}, cannot be loaded: {error}") from error
    if not inspect.isclass(loaded) or inspect.isabstract(loaded):
        raise ConfigError(f"{target}, which answers to {scheme!r}, must be a class that has publish()")
    return loaded
