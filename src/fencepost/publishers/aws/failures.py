"""What AWS's errors mean for a message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fencepost.errors import Permanent, Retryable

THROTTLE_DELAY = timedelta(seconds=2)

# Codes as `plain_code` gives them. Nobody's message gets through until a person or a quota changes something.
REFUSED = frozenset(
    {
        "AccessDenied",
        "AuthFailure",
        "AuthorizationError",
        "ExpiredToken",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidAddress",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignature",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClient",
    }
)
THROTTLED = frozenset(
    {
        "KMSThrottling",
        "KmsThrottled",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttled",
        "Throttling",
        "TooManyRequests",
    }
)
MISSING = frozenset({"NonExistentQueue", "NotFound", "QueueDoesNotExist", "QueueDeletedRecently"})
FAULTS_OF_THE_MESSAGE = frozenset(
    {"BatchRequestTooLong", "InvalidMessageContents", "InvalidParameter", "InvalidParameterValue"}
)
# Such a code also says that the address is wrong.
_OF_THE_ADDRESS = ("QueueUrl", "TopicArn")


def plain_code(code: str) -> str:
    """Return an error code without what one protocol has and another has not."""
    return code.rpartition("#")[2].rpartition(".")[2].removesuffix("Exception")


def failure(shown: str, place: str, code: str, text: str, status: int = 400) -> Permanent | Retryable:
    """Return what an answer of AWS means.

    Args:
        shown: the destination, for people.
        place: the queue or topic, for people.
        code: AWS's error code.
        text: its message.
        status: the HTTP status; a failed entry of a batch has none of its own.
    """
    plain = plain_code(code)
    said = f"{shown}: {place}: {code}: {text}".rstrip(": ")
    if plain in MISSING:
        return Retryable(
            f"{said.rstrip('.')}: create it, or correct the region, account or name in the URL", unavailable=True
        )
    if plain in THROTTLED or status == 429:
        return Retryable(said, delay=THROTTLE_DELAY, unavailable=True)
    if plain in REFUSED or plain.upper().startswith("KMS"):
        return Retryable(said, unavailable=True)
    if status >= 500:
        return Retryable(said, unavailable=status == 503 or plain == "ServiceUnavailable")
    if plain in FAULTS_OF_THE_MESSAGE and not any(word in text for word in _OF_THE_ADDRESS):
        return Permanent(said)
    return Retryable(said, unavailable=status in (401, 403))


def of_entry(shown: str, place: str, failed: dict[str, Any]) -> Permanent | Retryable:
    """Return what an entry of ``Failed`` means: permanent only for what is the message's own fault."""
    code, text = str(failed.get("Code", "")), str(failed.get("Message", ""))
    found = failure(shown, place, code, text, 400 if failed.get("SenderFault") else 500)
    if isinstance(found, Permanent) and not failed.get("SenderFault"):
        return Retryable(str(found))
    return found
