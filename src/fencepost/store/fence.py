"""What a receiver asks of its own database: is this token the newest that I have seen?"""

from __future__ import annotations

from datetime import timedelta

from fencepost.core.fence import Admission, Entrance
from fencepost.core.operation import Operation
from fencepost.errors import SchemaError
from fencepost.store.catalog import Catalog
from fencepost.store.forget import Forgotten, forget


def admit(catalog: Catalog, entrance: Entrance) -> Operation[Admission]:
    """Let a token in unless a newer one was, and hold what it belongs to until the transaction ends.

    Where another transaction is at the same resource this waits for its end, and judges by what then stands.

    Raises:
        SchemaError: something in the database made the INSERT write nothing.
    """
    identity = {"receiver": entrance.receiver, "resource": entrance.resource}
    if (yield catalog.statement("fence_admit", identity | {"token": entrance.token})):
        return Admission(entrance.token, entrance.token)
    # The refused statement has locked the row: nobody moves or forgets it in between.
    rows = yield catalog.statement("fence_find", identity)
    if not rows or rows[0][0] <= entrance.token:
        raise SchemaError(
            f"an INSERT into {catalog.names.placeholders()['fence']} answers with no row, and no newer token is "
            "in its way: remove the trigger or the rule that swallows it, and roll this transaction back"
        )
    return Admission(entrance.token, rows[0][0])


def purge(
    catalog: Catalog, receiver: str, *, older_than: timedelta, limit: int, after: int = 0
) -> Operation[Forgotten]:
    """Forget at most ``limit`` resources that nobody was let into for ``older_than``; see `forget`."""
    whose = {"receiver": receiver}
    return forget(catalog, "fence_purge", whose, older_than=older_than, limit=limit, after=after)
