"""Schedules: jobs that come by the clock, declared beside the tasks and looked after by every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict
from uuid import NAMESPACE_URL, UUID, uuid5

from fencepost.client.cron import Cron
from fencepost.core.job import SCHEDULED_FOR, JobOptions
from fencepost.core.text import checked_text
from fencepost.core.ticks import CatchUp
from fencepost.errors import ConfigError, InvalidMessage
from fencepost.store.schedules import Definition

MAX_NAME_BYTES = 255


class ScheduleOptions(TypedDict, total=False):
    """The optional arguments of ``jobs.schedule``, as those of ``enqueue``.

    Args:
        queue: another one than the task's own.
        unique_key: a tick adds no job while the one before is open.
        key: what the task's limit for each key counts by.
        max_attempts, recovery: other ones than the task's own.
        headers: text to text; ``scheduled-for`` comes with the tick.
    """

    queue: str | None
    unique_key: str | None
    key: str | None
    max_attempts: int | None
    recovery: str | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is enqueued at the ticks of an expression.

    Raises:
        ConfigError: what cannot work, with the remedy.
    """

    name: str
    definition: Definition
    args: Any
    catch_up: CatchUp
    options: ScheduleOptions
    cron: Cron = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            checked_text("the name of a schedule", self.name, MAX_NAME_BYTES)
        except InvalidMessage as error:
            raise ConfigError(str(error)) from None
        unknown = sorted(set(self.options) - set(ScheduleOptions.__annotations__))
        if unknown:
            raise ConfigError(
                f"schedule {self.name!r}: there is no option {unknown[0]!r}; the options are: timezone, catch_up, "
                f"{', '.join(ScheduleOptions.__annotations__)}"
            )
        if SCHEDULED_FOR in (self.options.get("headers") or {}):
            raise ConfigError(f"schedule {self.name!r}: the header {SCHEDULED_FOR} is ours: name yours otherwise")
        try:
            cron = Cron(self.definition.expression, self.definition.timezone)
        except ConfigError as error:
            raise ConfigError(f"schedule {self.name!r}: {error}") from None
        object.__setattr__(self, "cron", cron)

    def options_at(self, tick: datetime) -> JobOptions:
        """Return what its job at a tick is enqueued with."""
        shown = tick.isoformat()
        headers = {**(self.options.get("headers") or {}), SCHEDULED_FOR: shown}
        # The same id for the same tick, also where the database came back without its last commits.
        return {**self.options, "headers": headers, "job_id": _id_at(self.name, shown)}  # type: ignore[typeddict-item] # mypy does not see that its keys are among those


def _id_at(name: str, tick: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"fencepost:schedule:{name}:{tick}")


def checked_catch_up(name: str, value: object) -> CatchUp:
    """Return what becomes of missed ticks.

    Raises:
        ConfigError: it is none of the three.
    """
    try:
        return CatchUp(value)  # type: ignore[arg-type] # anything may have been given: that is what is checked
    except ValueError:
        raise ConfigError(f"schedule {name!r}: catch_up must be 'last', 'all' or 'none', not {value!r}") from None
