"""The verdict, from the tables alone: each line is one query, what it found, and whether that is as it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from fencepost.demo.terms import FROZEN, KILLED, LEASE, PUBLISH_TIMEOUT, TAKEOVER_LIMIT

Connection = psycopg.Connection[Any]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a verdict."""

    name: str
    holds: bool
    claim: str
    found: str
    figures: Figures

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "holds": self.holds,
            "claim": self.claim,
            "found": self.found,
            "figures": self.figures,
        }


def judge(connection: Connection) -> list[Line]:
    """Return the verdict on a whole run."""
    lines: list[Callable[[Connection], Line]] = [
        _delivered,
        _rolled_back,
        _payloads,
        _repeats,
        _taken_over,
        _stale_writes,
        _nothing_left,
    ]
    return [line(connection) for line in lines]


def figures(connection: Connection, query: LiteralString, parameters: Figures | None = None) -> Figures:
    """Return the only row of a query by the names of its columns."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchone() or {}


# --- the lines --------------------------------------------------------------------------------------------

_DELIVERED = """
    SELECT (SELECT count(*) FROM fencepost_demo.orders) AS orders,
           (SELECT count(*) FROM fencepost_demo.outbox) AS messages,
           (SELECT count(*) FROM fencepost_demo.outbox WHERE status = 'done' AND outcome = 'delivered') AS done,
           (SELECT count(DISTINCT message_id) FROM fencepost_demo.arrival) AS received,
           (SELECT count(*) FROM fencepost_demo.orders AS o WHERE NOT EXISTS (
                SELECT FROM fencepost_demo.arrival AS a WHERE a.message_id = o.message_id)) AS missing
"""


def _delivered(connection: Connection) -> Line:
    found = figures(connection, _DELIVERED)
    return Line(
        "delivered",
        found["orders"] > 0
        and found["missing"] == 0
        and found["orders"] == found["messages"] == found["done"] == found["received"],
        "Every committed order was delivered",
        f"{found['orders']} orders committed, {found['received']} different messages received, "
        f"{found['missing']} missing",
        found,
    )


_ROLLED_BACK = """
    SELECT count(*) FILTER (WHERE how = 'transaction') AS transactions,
           count(*) FILTER (WHERE how = 'savepoint') AS savepoints,
           count(*) FILTER (WHERE EXISTS (
                SELECT FROM fencepost_demo.outbox AS o WHERE o.message_id = r.message_id)) AS in_outbox,
           count(*) FILTER (WHERE EXISTS (
                SELECT FROM fencepost_demo.arrival AS a WHERE a.message_id = r.message_id)) AS received
    FROM fencepost_demo.rolled_back AS r
"""


def _rolled_back(connection: Connection) -> Line:
    found = figures(connection, _ROLLED_BACK)
    return Line(
        "rolled_back",
        min(found["transactions"], found["savepoints"]) > 0 and found["in_outbox"] == found["received"] == 0,
        "Nothing that was rolled back was ever sent",
        f"{found['transactions']} transactions and {found['savepoints']} savepoints rolled back, "
        f"{found['received']} of their messages received",
        found,
    )


_PAYLOADS = """
    SELECT count(*) AS arrivals,
           count(*) FILTER (WHERE o.event IS DISTINCT FROM a.payload) AS different
    FROM fencepost_demo.arrival AS a LEFT JOIN fencepost_demo.orders AS o USING (message_id)
    WHERE NOT EXISTS (SELECT FROM fencepost_demo.rolled_back AS r WHERE r.message_id = a.message_id)
"""


def _payloads(connection: Connection) -> Line:
    found = figures(connection, _PAYLOADS)
    return Line(
        "payloads",
        found["arrivals"] > 0 and found["different"] == 0,
        "Payloads arrived byte for byte as the shop wrote them",
        f"{found['arrivals']} compared, {found['different']} different",
        found,
    )


# An arrival that is not its message's first is a repeat. Its cause is looked for in what became of the attempt
# before it: in the hands of a worker that was killed or frozen, timed out, or its lease ran out by itself. The
# last takes time: an attempt arrives within the publish time-out, so the rest of its lease lies between the two.
_REPEATED = """
    WITH attempt AS (
        SELECT *, lag(worker) OVER earlier AS worker_before, lag(token) OVER earlier AS token_before,
               extract(epoch FROM at - lag(at) OVER earlier) AS seconds
        FROM fencepost_demo.arrival
        WINDOW earlier AS (PARTITION BY message_id ORDER BY id)
    )
    SELECT attempt.message_id, attempt.worker_before, attempt.token_before, attempt.worker, attempt.token,
           CASE WHEN attempt.token <= attempt.token_before THEN 'unexplained'
                WHEN fault.kind IS NOT NULL THEN fault.kind
                WHEN o.last_error LIKE 'no answer from %%' THEN 'timed out'
                WHEN o.reclaim_count > 0 AND seconds > %(rest_of_lease)s THEN 'lease ran out'
                ELSE 'unexplained' END AS cause
    FROM attempt
    JOIN fencepost_demo.outbox AS o USING (message_id)
    LEFT JOIN fencepost_demo.held AS h ON h.message_id = attempt.message_id
        AND h.worker = attempt.worker_before AND h.token = attempt.token_before
    LEFT JOIN fencepost_demo.fault AS fault ON fault.worker = h.worker
    WHERE attempt.token_before IS NOT NULL
    ORDER BY attempt.id
"""

CAUSES = {
    "killed": f"{KILLED} was killed",
    "frozen": f"{FROZEN} was frozen",
    "timed out": "the publish timed out",
    "lease ran out": "the lease ran out",
    "unexplained": "no known cause",
}

_SHIPMENTS = """
    SELECT count(*) AS shipments, count(*) - count(DISTINCT message_id) AS shipped_again
    FROM fencepost_demo.shipment
"""


def repeats(connection: Connection) -> list[Figures]:
    """Return every repeat: the attempt before, the attempt again, and the cause."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_REPEATED, {"rest_of_lease": LEASE - PUBLISH_TIMEOUT}).fetchall()


def _repeats(connection: Connection) -> Line:
    causes = [row["cause"] for row in repeats(connection)]
    counted = {cause: causes.count(cause) for cause in CAUSES}
    shipped = figures(connection, _SHIPMENTS)
    named = ", ".join(f"{count} since {CAUSES[cause]}" for cause, count in counted.items() if count)
    return Line(
        "repeats",
        counted["unexplained"] == 0
        and min(counted["killed"], counted["frozen"]) > 0
        and shipped["shipped_again"] == 0,
        "Every repeat has a cause, and the receiver dropped it",
        f"{len(causes)} repeats: {named or 'none'}; {shipped['shipped_again']} parcels shipped twice",
        {"repeats": len(causes), "causes": counted, **shipped},
    )


_TAKEN_OVER = """
    SELECT count(*) FILTER (WHERE f.kind = 'killed') AS held_by_killed,
           count(*) FILTER (WHERE f.kind = 'frozen') AS held_by_frozen,
           count(*) FILTER (WHERE o.lease_version > h.token AND o.reclaim_count > 0 AND o.attempts > 1
                              AND o.lease_owner <> h.worker AND again.at IS NOT NULL) AS taken_over,
           count(*) FILTER (WHERE again.at <= h.lease_until) AS too_early,
           coalesce(max(extract(epoch FROM again.at - h.lease_until)), 0)::float8 AS slowest_seconds
    FROM fencepost_demo.held AS h
    JOIN fencepost_demo.fault AS f USING (worker)
    JOIN fencepost_demo.outbox AS o ON o.id = h.outbox_id
    CROSS JOIN LATERAL (
        SELECT min(a.at) AS at FROM fencepost_demo.arrival AS a
        WHERE a.message_id = h.message_id AND a.token > h.token
    ) AS again
"""


def _taken_over(connection: Connection) -> Line:
    found = figures(connection, _TAKEN_OVER) | {"limit_seconds": TAKEOVER_LIMIT}
    held = found["held_by_killed"] + found["held_by_frozen"]
    return Line(
        "taken_over",
        min(found["held_by_killed"], found["held_by_frozen"]) > 0
        and found["taken_over"] == held
        and found["too_early"] == 0
        and found["slowest_seconds"] <= TAKEOVER_LIMIT,
        "What they held was taken over when its lease ended, not before",
        f"{found['taken_over']} of {held} messages, {found['too_early']} too early, the last "
        f"{found['slowest_seconds']:.1f} s after the end of its lease (limit {TAKEOVER_LIMIT:g} s: poll + 1 s)",
        found,
    )


_STALE_WRITES = """
    SELECT (SELECT coalesce(sum(r.lost_leases), 0)::bigint
            FROM fencepost_demo.worker_report AS r JOIN fencepost_demo.fault AS f USING (worker)
            WHERE f.kind = 'frozen') AS refused,
           count(*) AS rows,
           count(*) FILTER (WHERE o.xmin::text <> b.row_version OR o.lease_version <> b.token
                               OR o.done_at IS DISTINCT FROM b.done_at) AS changed
    FROM fencepost_demo.before_thaw AS b JOIN fencepost_demo.outbox AS o ON o.id = b.outbox_id
"""


def _stale_writes(connection: Connection) -> Line:
    found = figures(connection, _STALE_WRITES)
    return Line(
        "stale_writes",
        min(found["refused"], found["rows"]) > 0 and found["changed"] == 0,
        f"The late writes of {FROZEN} were refused",
        f"{found['refused']} refused, {found['changed']} of {found['rows']} rows changed "
        "(token, done_at and row version compared)",
        found,
    )


_NOTHING_LEFT = """
    SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           count(*) FILTER (WHERE status = 'blocked') AS blocked,
           count(*) FILTER (WHERE status = 'dead') AS dead
    FROM fencepost_demo.outbox
"""


def _nothing_left(connection: Connection) -> Line:
    found = figures(connection, _NOTHING_LEFT)
    return Line(
        "nothing_left",
        not any(found.values()),
        "Nothing is left over",
        f"{found['pending']} pending, {found['processing']} processing, {found['blocked']} blocked, "
        f"{found['dead']} dead",
        found,
    )
