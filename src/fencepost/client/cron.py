"""Expressions of cron in a time zone, by cronsim; see ``docs/schedules.md`` for where clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from importlib.util import find_spec
from zoneinfo import ZoneInfo

from fencepost.core.text import checked_text
from fencepost.errors import ConfigError, InvalidMessage

MAX_EXPRESSION_BYTES = 255


class Cron:
    """The ticks of an expression.

    Args:
        expression: five fields, or six with seconds first, as cronsim knows them.
        timezone: a name of the IANA database, such as ``Europe/Berlin``.

    Raises:
        ConfigError: one of them is unknown, the expression has no tick, or cronsim is not installed.
    """

    __slots__ = ("_expression", "_zone")

    def __init__(self, expression: str, timezone: str) -> None:
        if find_spec("cronsim") is None:
            raise ConfigError("schedules need cronsim: pip install 'fencepost[cron]'")
        from cronsim import CronSimError

        self._expression = _text("expression", expression)
        self._zone = _zone(timezone)
        try:
            first = next(self.after(datetime.now(UTC)), None)
        except (CronSimError, OverflowError) as error:
            raise ConfigError(
                f"expression {expression!r} is not one of cron: {error}. It has five fields, minute, hour, day of "
                "month, month and day of week, or six with seconds first, such as '15 3 * * *'"
            ) from None
        if first is None:
            raise ConfigError(f"expression {expression!r} has no tick within 50 years: correct its day and month")

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Return the ticks strictly after an instant, in UTC, each one later than the one before."""
        from cronsim import CronSim

        latest = instant
        for local in CronSim(self._expression, instant.astimezone(self._zone)):
            # It reads a clock on the wall, so that it may begin again within the hour that comes twice.
            tick = local.astimezone(UTC)
            if tick > latest:
                latest = tick
                yield tick


def _zone(name: object) -> tzinfo:
    text = _text("timezone", name)
    if text == "UTC":
        return UTC  # a shorter way through cronsim than the zone of that name
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # unknown, no name, and the name of a directory
        raise ConfigError(
            f"timezone {text!r} is unknown: give a name such as 'Europe/Berlin', and pip install tzdata where the "
            "system has no time zones"
        ) from None


def _text(name: str, value: object) -> str:
    try:
        return checked_text(name, value, MAX_EXPRESSION_BYTES)
    except InvalidMessage as error:
        raise ConfigError(str(error)) from None
