"""Error text that any store can hold: the write that records a failure must never fail itself."""

from __future__ import annotations

MAX_ERROR_CHARS = 4_000


def storable(text: str, limit: int = MAX_ERROR_CHARS) -> str:
    """Return ``text`` without NUL and lone surrogates (shown as escapes), cut in the middle past ``limit``.

    The end of an error is kept as well as its start: that is where the cause stands.
    """
    if len(text) > limit:
        tail = limit // 4
        cut = len(text) - limit
        text = f"{text[: limit - tail]} [… {cut} characters cut …] {text[-tail:]}"
    text = text.replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe(error: BaseException) -> str:
    """Return ``Type: message`` for any exception, also one whose ``__str__`` or ``__repr__`` raises."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - a hostile __str__ may raise anything, and must not win
        text = f"(its text cannot be read: __str__ raised {type(broken).__name__})"
    return storable(f"{name}: {text}" if text else name)
