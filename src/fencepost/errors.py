"""Every exception that fencepost raises, and the three that a publisher raises to classify a failure."""

from __future__ import annotations

from datetime import timedelta


class FencepostError(Exception):
    """The base of everything fencepost raises on its own account."""


class ConfigError(FencepostError):
    """A setting cannot work. The message names the setting and the remedy."""


class EmbeddedError(FencepostError):
    """The embedded PostgreSQL could not be started, reached or stopped. The message names the remedy."""


class InvalidMessage(FencepostError, ValueError):
    """A message was refused, at enqueue or as it was received, before any database work.

    The caller's transaction is untouched.
    """


class AutocommitRefused(FencepostError):
    """The connection would commit the event on its own, apart from the business change it announces."""


class DedupeConflict(FencepostError):
    """The dedupe key exists in this queue with other content. The caller's transaction stays usable."""


class MessageConflict(FencepostError):
    """A consumer accepted this message id with another body. The caller's transaction stays usable."""


class SequenceGap(FencepostError):
    """Messages of a key are missing before this one. Nothing was changed; the caller's transaction stays usable.

    Args:
        consumer: the consumer.
        key: the key.
        expected: the number that should have come.
        received: the number that came.
    """

    def __init__(self, consumer: str, key: str, *, expected: int, received: int) -> None:
        super().__init__(
            f"consumer {consumer!r} expected number {expected} of key {key!r} and got {received}: "
            f"{received - expected} in between did not come. Leave it unacknowledged until they have, or accept "
            "it with allow_gap=True"
        )
        self.consumer, self.key, self.expected, self.received = consumer, key, expected, received


class LeaseLost(FencepostError):
    """The lease of a job is lost: somebody else may be running it now. Stop, and leave no effect behind."""


class StaleToken(FencepostError):
    """A receiver refused a write under an older fencing token than the newest it has seen.

    Nothing was changed, and the caller's transaction stays usable: roll it back, and give the work up.

    Args:
        receiver: the receiver.
        resource: what the token belongs to.
        token: the token that was refused.
        newest: the newest one.
    """

    def __init__(self, receiver: str, resource: str, *, token: int, newest: int) -> None:
        super().__init__(
            f"receiver {receiver!r} has seen token {newest} of {resource!r} and refuses {token}: somebody else "
            "has taken the work over. Roll back, and write nothing more for it"
        )
        self.receiver, self.resource, self.token, self.newest = receiver, resource, token, newest


class EffectLost(FencepostError):
    """A consumer's transaction was rolled back although nothing was raised; the message is not acknowledged."""


class SchemaError(FencepostError):
    """The tables are missing, older than this version needs, or differ from what the migrations made."""


class UnsupportedConnection(FencepostError, TypeError):
    """No driver knows this kind of connection; the message lists the kinds that work."""


class PublishFailure(Exception):
    """The base of the three classified failures. Raise one of the subclasses from ``publish``.

    Anything else that leaves ``publish`` is *unclassified*: treated as retryable, logged as an error with
    its traceback, and counted apart.
    """


class Retryable(PublishFailure):
    """The message may succeed later: it returns to ``pending`` after a backoff, or to ``dead`` at the limit.

    Args:
        reason: text for ``last_error``.
        delay: the least time to wait before the next attempt, when the receiver named one (``Retry-After``);
            the backoff still applies when it is longer, and its cap bounds this delay.
        unavailable: the destination as a whole cannot be reached or takes nothing just now (no connection, a
            refused login, "service unavailable"), so this failure says nothing about this message. A few of
            these open the breaker of its queue. Leave it False where you cannot tell.

    Raises:
        TypeError: ``delay`` is no timedelta.
    """

    def __init__(self, reason: str = "", *, delay: timedelta | None = None, unavailable: bool = False) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else _timedelta(delay)
        self.unavailable = unavailable


class SoftLimitReached(Retryable):
    """A job has run for longer than its task's ``soft_limit``: wrap up. Let through, it is retryable."""


class Permanent(PublishFailure):
    """The message can never succeed as it is: it goes to ``dead`` at once, attempts kept."""


class Gone(Permanent):
    """The destination says that it will never take anything again, as a webhook that answers 410.

    The queue of a destination is paused, with the reason, and the message kept; `fencepost resume` lets it go on.
    Where the publisher stands in a route of a shared queue, it is a permanent failure of the message.
    """


class Defer(PublishFailure):
    """A business precondition is missing: try again after ``delay``, with the attempt given back.

    Args:
        delay: time until the message is due again; none or a negative one makes it due at once.
        reason: kept in ``last_error``.

    Raises:
        TypeError: ``delay`` is no timedelta.
    """

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        self.delay = _timedelta(delay)
        super().__init__(reason or f"deferred for {delay}")


def _timedelta(delay: timedelta) -> timedelta:
    # Said where the mistake stands: a number would come to light only when its row is written.
    if not isinstance(delay, timedelta):
        raise TypeError(f"delay must be a timedelta, such as timedelta(seconds=30), not {delay!r}")
    return delay
