"""Logs to standard error, as key=value lines or as JSON objects, with secrets masked."""

from __future__ import annotations

import json
import logging
import sys
import time

from fencepost.cli.redaction import Redactor
from fencepost.config import Settings


class LineFormatter(logging.Formatter):
    """``at=… level=… logger=… message="…"``, an exception's traceback below it."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record, self._redact)
        trace = str(fields.pop("traceback", ""))
        line = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        return line + "".join(f"\n    {each}" for each in trace.splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self._redact))


def log_to_stderr(settings: Settings, redact: Redactor) -> None:
    """Send every logger's records to standard error; other libraries only from WARNING on.

    Their informative lines are not ours to judge: an HTTP client's may hold whole URLs.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redact) if settings.log_json else LineFormatter(redact))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("fencepost").setLevel(settings.log_level.upper())


def _fields(record: logging.LogRecord, redact: Redactor) -> dict[str, object]:
    whole, fraction = divmod(record.created, 1)
    found: dict[str, object] = {
        "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int(fraction * 1000):03}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": redact(record.getMessage()),
    }
    # What a call gave as extra={"fields": {...}}: numbers that a log pipeline should find by name.
    found |= getattr(record, "fields", {})
    if record.exc_info:
        found["traceback"] = redact(logging.Formatter().formatException(record.exc_info))
    return found


def _quoted(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
