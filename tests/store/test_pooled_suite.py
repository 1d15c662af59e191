"""The list of what does not run through the pooler, and that the rest really does."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.store.pooled import DIRECT_ONLY
from tests.store.rows import OUTBOX, Connection, add, claim, value

HERE = Path(__file__).parent
LOCKS = """
SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
WHERE locktype = 'advisory' AND d.datname = current_database()
"""


@pytest.mark.parametrize("name", DIRECT_ONLY)
def test_every_exception_names_a_test_that_there_is(name: str) -> None:
    file, _, test = name.partition("::")
    assert (HERE / file).exists()
    assert not test or f"def {test}(" in (HERE / file).read_text()


def test_the_way_leads_through_a_pool_that_others_left_their_settings_in(
    db: Connection, db2: Connection, way: str
) -> None:
    shown = db.execute("SELECT current_setting('search_path'), current_setting('fencepost.own_session', true)")
    if way != "pg18 pooled":
        assert shown.fetchone() == ('"$user", public', None)
        return
    assert shown.fetchone() == ("public, pg_catalog", None)
    servers = {db.execute("SELECT pg_backend_pid()").fetchone() for db in (db, db2) * 3}
    assert len(servers) == 1  # the first that is free serves whoever asks
    with pytest.raises(psycopg.OperationalError, match="startup parameter"):
        psycopg.connect(db.info.dsn, options="-c geqo=off")


def test_nothing_of_ours_stays_behind_in_a_session(db: Connection, db2: Connection) -> None:
    add(db, 3, ordering_key="k")
    with db.transaction():
        OUTBOX.enqueue(db, "t", None)
        assert value(db, LOCKS) == 1
    assert len(claim(db2)) > 0
    assert value(db, LOCKS) == 0
    assert db.execute("SELECT current_setting('fencepost.notified', true)").fetchone() in ((None,), ("",))
