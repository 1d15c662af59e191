"""Log lines: findable by key, masked, one record a line."""

from __future__ import annotations

import json
import logging
import sys

from fencepost.cli.logs import JsonFormatter, LineFormatter
from fencepost.cli.redaction import Redactor


def record(message: str, error: Exception | None = None, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("fencepost.x", logging.WARNING, __file__, 1, message, (), None)
    made.created = 1_800_000_000.25
    if fields:
        made.fields = fields
    if error is not None:
        try:
            raise error
        except Exception:
            made.exc_info = sys.exc_info()
    return made


def redactor() -> Redactor:
    redact = Redactor()
    redact.learn_store("postgresql://app:s3cret@db/shop")
    return redact


def test_key_and_value() -> None:
    line = LineFormatter(redactor()).format(record('say "s3cret"\nand \x1b[0m', drained=True, claimed=3))
    assert line == (
        'at=2027-01-15T08:00:00.250Z level=warning logger=fencepost.x message="say \\"***\\"\\nand \\u001b[0m" '
        "drained=true claimed=3"
    )


def test_json_lines() -> None:
    found = json.loads(JsonFormatter(redactor()).format(record("failed", ValueError("s3cret\nx"), claimed=3)))
    assert found["message"] == "failed"
    assert found["claimed"] == 3
    assert "ValueError: ***\nx" in found["traceback"]


def test_a_traceback_stands_below_its_line() -> None:
    lines = LineFormatter(redactor()).format(record("failed", ValueError("s3cret"))).splitlines()
    assert lines[0].endswith("message=failed")
    assert lines[-1] == "    ValueError: ***"
