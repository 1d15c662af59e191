"""``Retry-After``: how long a receiver asks us to wait."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER = timedelta(days=366)
"""Only so that any number of digits fits a timedelta; the dispatcher's backoff cap is the real bound."""


def retry_after(value: str | None, date: str | None = None, *, now: datetime | None = None) -> timedelta | None:
    """Return how long the receiver asked us to wait, or None where it did not say so in a usable way.

    ``Retry-After`` is a number of seconds or an HTTP-date (RFC 9110, section 10.2.3). A date is compared with
    the receiver's own ``Date`` where it sent one, so that its clock and ours need not agree. Anything else, a
    negative number or a date in the past is ignored.

    Args:
        value: the ``Retry-After`` header.
        date: the ``Date`` header of the same answer.
        now: the current instant, for tests.
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        digits = text.lstrip("0")
        seconds = MAX_RETRY_AFTER if len(digits) > 8 else timedelta(seconds=int(digits or "0"))
        return min(seconds, MAX_RETRY_AFTER) or None
    until = _http_date(text)
    if until is None:
        return None
    delay = until - (_http_date(date or "") or now or datetime.now(UTC))
    return min(delay, MAX_RETRY_AFTER) if delay > timedelta(0) else None


def _http_date(text: str) -> datetime | None:
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # An offset of -0000 reads as a naive instant; HTTP dates are always GMT (RFC 9110, section 5.6.7).
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
