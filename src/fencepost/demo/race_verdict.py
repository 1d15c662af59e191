"""The verdict on the race, from the tables alone."""

from __future__ import annotations

from fencepost.demo.race_scenes import LEASED, PAUSED, USUAL
from fencepost.demo.verdict import Connection, Figures, Line, figures

_SENT = """
    SELECT count(*) AS sent, count(DISTINCT worker) AS workers, count(DISTINCT message_id) AS messages,
           coalesce(array_agg(token ORDER BY id) FILTER (WHERE token IS NOT NULL), '{}') AS tokens
    FROM fencepost_demo.sent WHERE scene = %(scene)s
"""

_LATE_WRITE = """
    SELECT count(*) AS late_writes,
           count(*) FILTER (WHERE refused) AS refused,
           count(*) FILTER (WHERE o.xmin::text <> l.row_version OR o.lease_version <> l.token
                               OR o.done_at IS DISTINCT FROM l.done_at) AS changed
    FROM fencepost_demo.late_write AS l JOIN fencepost_demo.outbox AS o ON o.id = l.outbox_id
"""


def judge(connection: Connection) -> list[Line]:
    """Return the verdict on the three scenes."""
    return [_sent_twice(connection), _sent_once(connection), _late_write(connection), _repeat(connection)]


def _sent(connection: Connection, scene: str) -> Figures:
    return figures(connection, _SENT, {"scene": scene})


def _sent_twice(connection: Connection) -> Line:
    found = _sent(connection, USUAL)
    return Line(
        "usual_sent_twice",
        (found["sent"], found["workers"], found["messages"]) == (2, 2, 1),
        "The usual dispatcher sent its message twice, though nobody crashed and nothing was slow",
        f"{found['messages']} message, sent {found['sent']} times by {found['workers']} workers",
        found,
    )


def _sent_once(connection: Connection) -> Line:
    found = _sent(connection, LEASED)
    return Line(
        "leased_sent_once",
        (found["sent"], found["workers"], found["messages"]) == (1, 1, 1),
        "The lease kept the second worker away",
        f"{found['messages']} message, sent {found['sent']} time by {found['workers']} worker",
        found,
    )


def _late_write(connection: Connection) -> Line:
    found = figures(connection, _LATE_WRITE)
    return Line(
        "late_write_refused",
        found["late_writes"] > 0 and found["refused"] == found["late_writes"] and found["changed"] == 0,
        "The late write of the worker that had paused was refused",
        f"{found['refused']} of {found['late_writes']} refused, {found['changed']} rows changed "
        "(token, done_at and row version compared)",
        found,
    )


def _repeat(connection: Connection) -> Line:
    found = _sent(connection, PAUSED)
    tokens = found["tokens"]
    return Line(
        "repeat_can_be_told",
        (found["sent"], found["messages"]) == (2, 1) and tokens == sorted(set(tokens)) and len(tokens) == 2,
        "What it had sent was sent again, as it must be; the receiver can tell",
        f"{found['sent']} times, {found['messages']} message id, tokens {' then '.join(map(str, tokens))}",
        found,
    )
