"""What the campaign writes down, in tables of its own, and what the checker reads.

``accepted`` is the receiver: a line for each message that arrived, told from a late duplicate of a worker that had
lost its lease (which no fence can stop outside the database) by the token that it carried. ``finalized`` is
written by a trigger, in the transaction of the finalize itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

TABLES = """
CREATE TABLE accepted (
    seq bigserial PRIMARY KEY, id bigint NOT NULL, key text, token bigint NOT NULL, stale boolean NOT NULL
);
CREATE TABLE finalized (seq bigserial PRIMARY KEY, id bigint NOT NULL, key text, outcome text NOT NULL);
CREATE TABLE committed (id bigint PRIMARY KEY);
CREATE FUNCTION note_finalize() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO finalized (id, key, outcome) VALUES (new.id, new.ordering_key, new.outcome);
    RETURN NULL;
END $$;
CREATE TRIGGER note_finalize AFTER UPDATE ON outbox
FOR EACH ROW WHEN (old.status <> 'done' AND new.status = 'done') EXECUTE FUNCTION note_finalize();
"""

ACCEPT = """
INSERT INTO accepted (id, key, token, stale)
SELECT o.id, o.ordering_key, %(token)s, o.status <> 'processing' OR o.lease_version <> %(token)s
FROM outbox AS o WHERE o.id = %(id)s
"""


@dataclass
class Verdict:
    """What the checker found; empty lists are as it should be."""

    messages: int = 0
    accepted: int = 0
    repeats: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)


def check(conn: psycopg.Connection[Any]) -> Verdict:
    """Read the history and hold it to what is promised of order."""
    verdict = Verdict(messages=_count(conn, "SELECT count(*) FROM committed"))
    verdict.accepted = _count(conn, "SELECT count(*) FROM accepted")
    verdict.repeats = verdict.accepted - _count(conn, "SELECT count(DISTINCT id) FROM accepted")
    verdict.skipped = _count(conn, "SELECT count(*) FROM finalized WHERE outcome = 'skipped'")
    for text, query in _NEVER.items():
        found = conn.execute(query.encode()).fetchall()
        if found:
            verdict.problems.append(f"{text}: {len(found)}, such as {found[:5]}")
    return verdict


_FIRST = "SELECT id, key, min(seq) AS seq FROM accepted WHERE NOT stale AND key IS NOT NULL GROUP BY id, key"
_NEVER = {
    "first accepted before an earlier message of its key": f"""
        WITH first AS ({_FIRST})
        SELECT id, key, seq FROM (
            SELECT *, max(id) OVER (PARTITION BY key ORDER BY seq ROWS UNBOUNDED PRECEDING) AS highest FROM first
        ) AS walked WHERE id < highest""",
    "finalized before an earlier message of its key": """
        SELECT id, key, seq FROM (
            SELECT *, max(id) OVER (PARTITION BY key ORDER BY seq ROWS UNBOUNDED PRECEDING) AS highest
            FROM finalized WHERE key IS NOT NULL AND outcome = 'delivered'
        ) AS walked WHERE id < highest""",
    "finalized twice": "SELECT id, count(*) FROM finalized GROUP BY id HAVING count(*) > 1",
    "left behind": "SELECT id, status, ordering_key FROM outbox WHERE status <> 'done'",
    "committed and not there": "SELECT id FROM committed EXCEPT SELECT id FROM outbox",
    "there and not committed": "SELECT id FROM outbox EXCEPT SELECT id FROM committed",
    "delivered and never accepted": """
        SELECT id FROM finalized WHERE outcome = 'delivered' EXCEPT SELECT id FROM accepted""",
}


def _count(conn: psycopg.Connection[Any], query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
