"""What inboxes and fences share: where their tables are, and how they forget what is old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from fencepost.client.sending import OnTables
from fencepost.config import DispatcherSettings
from fencepost.core.operation import Operation
from fencepost.errors import ConfigError
from fencepost.store.catalog import Catalog, Names
from fencepost.store.forget import Forgotten


@dataclass(slots=True)
class Place:
    """Where the next step of a purge begins: where the last one ended, and anew once there was no more."""

    after: int = 0

    def step(self, purge: Callable[[int], Operation[Forgotten]]) -> Operation[int]:
        """Make one step from here; return how many rows it forgot."""
        forgotten = yield from purge(self.after)
        self.after = forgotten.after or 0
        return forgotten.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering(OnTables):
    """Rows that must not be forgotten before their time.

    Args:
        schema_name: the schema that holds the tables.
        table: the outbox table's name, which the others are named after.
        horizon: the longest time after which what they are kept against can still come: nothing younger is
            forgotten. Compute it from the sender's settings with `DispatcherSettings.redelivery_horizon`; the
            default is that of its defaults.
        allow_autocommit: accept connections that commit each statement by itself.

    Raises:
        ConfigError: a horizon that is not above 0.
    """

    schema_name: str = "public"
    table: str = "outbox"
    horizon: timedelta = field(default_factory=lambda: DispatcherSettings().redelivery_horizon())
    allow_autocommit: bool = False
    _place: Place = field(default_factory=Place, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.horizon <= timedelta(0):
            raise ConfigError(f"horizon must be above 0, not {self.horizon}")

    @property
    def catalog(self) -> Catalog:
        """The SQL of the tables."""
        return Catalog(Names(self.schema_name, self.table))

    def _forget(
        self, older_than: timedelta, limit: int, otherwise: str, purge: Callable[[int], Operation[Forgotten]]
    ) -> Operation[int]:
        """Make one step of a purge.

        Raises:
            ConfigError: it would forget too soon; ``otherwise`` says what could come, and what to do.
        """
        if limit < 1:
            raise ConfigError("purge needs a limit above 0")
        if older_than < self.horizon:
            raise ConfigError(f"older_than is {older_than}, but {otherwise.format(horizon=self.horizon)}")
        return self._place.step(purge)
