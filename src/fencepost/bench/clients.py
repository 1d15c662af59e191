"""What a destination is held against: its client library's own plain loop, of `fencepost.bench.client_loops`.

Every message is acknowledged before it counts, with the settings that lose nothing; no outbox, no headers but a
message id where the protocol has a place for one. Run as ``python -m fencepost.bench.clients``; see
`fencepost.bench.contender`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from fencepost.bench import client_loops as loops
from fencepost.bench.client_loops import POSTS, REQUESTS, WINDOW, Send, Target
from fencepost.bench.contender import WARM_UP, Assignment, Drained, Start, report
from fencepost.bench.tables import EVENT_TYPE, payload_of
from fencepost.core.error_text import describe
from fencepost.errors import ConfigError, FencepostError
from fencepost.publishers.address import masked, parse_address, scheme_of
from fencepost.publishers.aws.address import SECRETS
from fencepost.publishers.credentials import LOGIN_OPTIONS, Login, redacted
from fencepost.runtime.loop import new_event_loop


@dataclass(frozen=True, slots=True)
class Loop:
    """A library's loop.

    Args:
        words: how it is written, for the report.
        naming: the option that names where in the destination messages go.
        options: others that it understands, or may ignore.
    """

    run: Callable[[Target], AbstractAsyncContextManager[Send]]
    words: str
    naming: str = ""
    options: frozenset[str] = LOGIN_OPTIONS


_AWS = Loop(
    loops.sqs,
    f"aiobotocore send_message_batch of {REQUESTS}, {REQUESTS} in flight",
    options=frozenset({"endpoint"} | {f"{name}_{where}" for name in SECRETS for where in ("env", "file")}),
)
_HTTP = Loop(
    loops.http,
    f"httpx AsyncClient, {POSTS} posts in flight, where it is fastest on a short way",
    options=LOGIN_OPTIONS | {"query", "allow_private"},
)
LOOPS: Mapping[str, Loop] = {
    "kafka": Loop(
        loops.kafka, "confluent-kafka produce and poll, acks=all, idempotence", "topic", frozenset({"auto_create"})
    ),
    "amqp": Loop(
        loops.amqp,
        f"aio-pika publish, mandatory and persistent, confirms of {WINDOW} gathered",
        "routing_key",
        LOGIN_OPTIONS | {"exchange"},
    ),
    "nats": Loop(
        loops.nats,
        f"nats-py JetStream publish_async with Nats-Msg-Id, windows of {WINDOW}",
        "subject",
        LOGIN_OPTIONS,
    ),
    "redis": Loop(loops.redis, f"redis-py pipelines of {WINDOW} XADD", "stream"),
    "mqtt": Loop(
        loops.mqtt, f"aiomqtt publish, QoS 1, {WINDOW} gathered", "topic", LOGIN_OPTIONS | {"require_subscriber"}
    ),
    "sqs": _AWS,
    "sns": Loop(loops.sns, f"aiobotocore publish_batch of {REQUESTS}, {REQUESTS} in flight", options=_AWS.options),
    "http": _HTTP,
    "https": _HTTP,
}


def target_of(url: str, payload_bytes: int) -> tuple[Loop, Target]:
    """Return the loop for a destination, and where it sends what.

    Raises:
        ConfigError: there is no loop for it, or it has an option that the loop cannot heed.
    """
    scheme = scheme_of(url)
    loop = LOOPS.get(scheme)
    if loop is None:
        raise ConfigError(f"no plain loop to hold {masked(url)} against; there is one for {', '.join(LOOPS)}")
    try:
        address = parse_address(url, options=loop.options | {loop.naming, "timeout"})
    except ConfigError as error:
        raise ConfigError(f"the plain loop for {scheme}: {error}") from None
    if not address.hosts:
        raise ConfigError(f"{address.display}: name the server")
    name = address.options.get(loop.naming, "{event_type}").replace("{event_type}", EVENT_TYPE)
    if "{" in name:
        raise ConfigError(f"{address.display}: the plain loop can fill in {{event_type}} only")
    user, password = Login(address).read() if "user_env" in loop.options else (None, None)
    return loop, Target(address, name, payload_of(payload_bytes).encode(), user, password)


async def _send(assignment: Assignment, start: Start) -> Drained:
    loop, target = target_of(assignment.destination, assignment.payload_bytes)
    async with loop.run(target) as send:
        await send(WARM_UP)
        await asyncio.to_thread(start)
        started = time.monotonic()
        await send(assignment.messages)
        return Drained(assignment.messages, time.monotonic() - started)


def send_all(assignment: Assignment, start: Start) -> Drained:
    """Send the messages to the assignment's destination, on the event loop that a dispatcher would use.

    Raises:
        FencepostError: the library is missing, or something was not acknowledged; no secret is shown.
    """
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_send(assignment, start))
    except ImportError as error:
        raise FencepostError(
            f"the plain loop needs a client library that is not installed: {error.name}"
        ) from None
    except Exception as error:  # noqa: BLE001 - a library may raise anything, with a secret in its text
        first: Exception = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        target = target_of(assignment.destination, assignment.payload_bytes)[1]
        secrets = (target.user, target.password, target.address.username, target.address.password)
        raise FencepostError(redacted(describe(first), secrets)) from None


if __name__ == "__main__":
    report(send_all)
