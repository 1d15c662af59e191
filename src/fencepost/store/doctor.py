"""What slows the outbox or breaks its order, as one operation of small checks, each with its remedy.

Every check asks for a bounded amount of work, but for one pass over the open messages, as `stats` makes it.
What this user may not see is unknown, and never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from fencepost.core.operation import Operation, Row, Rows
from fencepost.core.queue import QueueSettings
from fencepost.core.records import Finding, Severity
from fencepost.errors import SchemaError
from fencepost.store import queues, schema
from fencepost.store.catalog import Catalog

NEWEST = 50_000
"""Messages, the newest by id, whose order is looked at."""

KEYS = 20_000
"""Ordering keys that are looked at."""

HELD_TOO_LONG = timedelta(minutes=5)
"""Age of a transaction past which it holds back vacuum for no good reason."""

MANY_XIDS = 100_000
"""Transactions that a slot may hold back vacuum for; it has no age of its own."""

MANY_DEAD = 10_000
LONG_WITHOUT_VACUUM = timedelta(minutes=10)
"""Dead rows, more than half as many as live ones, are too many after this time without a vacuum."""

EXPIRED_TOO_LONG = timedelta(minutes=1)
"""A worker takes a lease over within one poll."""

OLD = timedelta(minutes=5)
"""Age of a due message past which somebody should look."""

# What a claim or a heartbeat changes: an index on it ends heap-only updates.
_CHANGED_OFTEN = re.compile(r"\b(status|attempts|reclaim_count|lease_owner|lease_until|lease_version)\b")
_READABLE_ALL_THE_SAME = re.compile(r"index |constraint |the id sequence |column id has no ")
_AUTOVACUUM_OFF = re.compile(r"\bautovacuum_enabled=(?:false|off|no|0)\b")


def examine(catalog: Catalog) -> Operation[list[Finding]]:
    """Return what each check found, the checks in a fixed order; where the tables cannot be read, only that."""
    try:
        problems = yield from schema.check(catalog)
    except SchemaError as error:
        problems = [str(error)]
    if problems:
        found = [_problem("schema", text, None) for text in problems]
        if not all(_READABLE_ALL_THE_SAME.match(text) for text in problems):
            return found
    else:
        found = [_ok("schema", "the tables are in order")]
    for check in (_delivered_order, _commit_order, _keys, _vacuum, _dead_rows, _indexes, _queues):
        found += yield from check(catalog)
    return found


def lock_line(catalog: Catalog) -> str:
    """Return the statement that a producer in plain SQL sends before its INSERT."""
    table = catalog.names.placeholders()["outbox"]
    return f"SELECT pg_advisory_xact_lock(hashtextextended('{table} ' || queue || ' ' || ordering_key, 1))"


def _ok(check: str, text: str) -> Finding:
    return Finding(check, Severity.OK, text)


def _problem(check: str, text: str, remedy: str | None) -> Finding:
    return Finding(check, Severity.PROBLEM, text, remedy)


def _warning(check: str, text: str, remedy: str | None) -> Finding:
    return Finding(check, Severity.WARNING, text, remedy)


# --- order -----------------------------------------------------------------------------------------------


def _delivered_order(catalog: Catalog) -> Operation[list[Finding]]:
    rows = yield catalog.statement("doctor_order", {"newest": NEWEST})
    compared = f"{rows[0][0]} delivered ones among the newest {NEWEST} messages"
    if not rows[0][1]:
        return [_ok("delivered_order", f"no key was out of order, by {compared}")]
    return [
        _problem(
            "delivered_order",
            f"{_inverted(rows[0])} delivered before an earlier message of its key, by {compared}: somebody "
            "inserts without the lock of the key, or changed rows by hand",
            _send_lock_line(catalog),
        )
    ]


def _commit_order(catalog: Catalog) -> Operation[list[Finding]]:
    rows = yield catalog.statement("doctor_server")
    if not rows[0][0]:
        text = "cannot be compared with the order of commits: track_commit_timestamp is off"
        return [Finding("commit_order", Severity.UNKNOWN, f"ids {text}", None)]
    rows = yield catalog.statement("doctor_commits", {"newest": NEWEST})
    compared = f"{rows[0][0]} untouched ones among the newest {NEWEST} messages"
    if not rows[0][1]:
        return [_ok("commit_order", f"ids follow the order of commits, by {compared}")]
    return [
        _problem(
            "commit_order",
            f"{_inverted(rows[0])} committed before an earlier message of its key, by {compared}: somebody "
            "inserts without the lock of the key",
            _send_lock_line(catalog),
        )
    ]


def _inverted(row: Row) -> str:
    _, keys, queue, key, row_id = row
    return f"{_counted(keys, 'ordering key')} out of order, such as {key!r} in queue {queue}: message {row_id} was"


def _send_lock_line(catalog: Catalog) -> str:
    return f"in the producer's transaction, before the INSERT: {lock_line(catalog)}"


def _keys(catalog: Catalog) -> Operation[list[Finding]]:
    walk = {"after_queue": "", "after_key": "", "queue": None, "window": KEYS}
    rows = yield catalog.statement("doctor_keys", walk)
    dead, stranded, seen = rows[0]
    looked = f"of the first {KEYS} keys" if seen >= KEYS else f"of {_counted(seen, 'key')} with open messages"
    found = [_ok("dead_heads", f"none {looked} waits behind a dead message")]
    if dead:
        text = f"{dead} {looked} cannot move: others wait behind a dead message"
        found = [_problem("dead_heads", text, "fencepost keys; then dead retry or dead skip")]
    if not stranded:
        return [*found, _ok("stranded_keys", f"none {looked} is stranded")]
    text = f"{stranded} {looked}: parked with nothing before, as after a DELETE by hand"
    return [*found, _problem("stranded_keys", text, "run a dispatcher, which promotes them; see fencepost keys")]


# --- the table and vacuum --------------------------------------------------------------------------------


def _vacuum(catalog: Catalog) -> Operation[list[Finding]]:
    rows = yield catalog.statement("doctor_vacuum")
    if not rows:
        return [_ok("vacuum", "nobody holds it back")]
    kind, name, xids, held, application, state, queried = rows[0]
    who = f"{kind} {name}" if kind != "session" else f"session {name} ({application or 'no name'})"
    if held is None and xids >= MANY_XIDS:
        text = f"{who} holds back vacuum for {_counted(xids, 'transaction')}; since when is unknown"
        return [_warning("vacuum", text, _end_of(kind, name))]
    if held is None and kind == "session":
        text = f"since when {who} holds back vacuum is unknown: another user's session"
        return [Finding("vacuum", Severity.UNKNOWN, text, "GRANT pg_read_all_stats to this user")]
    if held is None:
        return [_ok("vacuum", f"{who} holds back {_counted(xids, 'transaction')}, not many")]
    age = timedelta(microseconds=held)
    if age < HELD_TOO_LONG:
        return [_ok("vacuum", f"the oldest transaction is {_seconds(age)} old")]
    doing = f", {state} since its query of {_seconds(timedelta(microseconds=queried))} ago" if queried else ""
    text = f"{who} holds back vacuum for {_seconds(age)} and {_counted(xids, 'transaction')}{doing}"
    return [_warning("vacuum", f"{text}: claims get slower meanwhile", _end_of(kind, name))]


def _end_of(kind: str, name: str) -> str:
    if kind == "session":
        return f"SELECT pg_terminate_backend({name}), or let it end"
    if kind == "prepared transaction":
        return "COMMIT PREPARED or ROLLBACK PREPARED it"
    return "let its reader catch up, or SELECT pg_drop_replication_slot of it"


def _dead_rows(catalog: Catalog) -> Operation[list[Finding]]:
    table = catalog.names.placeholders()["outbox"]
    server = yield catalog.statement("doctor_server")
    rows = yield catalog.statement("doctor_table", {"outbox": table})
    live, dead, options, since = rows[0]
    if not server[0][1] or _AUTOVACUUM_OFF.search(options or ""):
        return [_problem("dead_rows", "autovacuum is off", f"turn it on: for the server, and for {table}")]
    is_overdue = since is None or timedelta(microseconds=since) > LONG_WITHOUT_VACUUM
    last = "never" if since is None else f"{_seconds(timedelta(microseconds=since))} ago"
    text = f"about {live} live and {dead} dead rows; last vacuum: {last}"
    if dead > MANY_DEAD and dead > live / 2 and is_overdue:
        return [_warning("dead_rows", text, f"VACUUM {table}, and see the check named vacuum")]
    return [_ok("dead_rows", text)]


def _indexes(catalog: Catalog) -> Operation[list[Finding]]:
    rows = yield catalog.statement("doctor_indexes", {"outbox": catalog.names.placeholders()["outbox"]})
    found = []
    for name, is_valid, definition in rows:
        if not is_valid:
            found.append(_warning("indexes", f"index {name} is invalid: it costs and serves nobody", "DROP it"))
        changed = _CHANGED_OFTEN.search(definition.partition(" USING ")[2])
        if changed:
            text = f"index {name} names {changed[1]}: every claim and heartbeat has to write to all indexes"
            found.append(_warning("indexes", text, "DROP it, or index columns that no claim changes"))
    return found or [_ok("indexes", f"{_counted(len(rows), 'index', 'indexes')}, none of them in the way")]


# --- the queues ------------------------------------------------------------------------------------------


def _queues(catalog: Catalog) -> Operation[list[Finding]]:
    rows = yield catalog.statement("doctor_open")
    settings = yield from queues.queue_settings(catalog)
    return [*_expired(rows), *_paused(rows, settings), *_breakers(settings), *_oldest(rows), *_settings(settings)]


def _expired(rows: Rows) -> list[Finding]:
    found = []
    for queue, _, expired, ended, _, paused, *_ in rows:
        if ended is not None and not paused and timedelta(microseconds=ended) > EXPIRED_TOO_LONG:
            text = (
                f"queue {queue}: {_counted(expired, 'lease')} ended, the first "
                f"{_seconds(timedelta(microseconds=ended))} ago, and nobody takes over"
            )
            found.append(_problem("expired_leases", text, "start a dispatcher that serves this queue"))
    return found or [_ok("expired_leases", "each one that ended is taken over")]


def _paused(rows: Rows, settings: Iterable[QueueSettings]) -> list[Finding]:
    reasons = {each.queue: each.pause_reason for each in settings if each.paused and each.pause_reason is not None}
    found = []
    for queue, waiting, *_, paused, actor, since in rows:
        if paused and (waiting or queue in reasons):
            when = f"since {_seconds(timedelta(microseconds=since))} " if since is not None else ""
            text = f"queue {queue}: {_counted(waiting, 'message')} waiting; paused {when}by {actor or 'somebody'}"
            found.append(_pause(queue, text, reasons.pop(queue, None)))
    found += [_pause(queue, f"queue {queue}: paused", reason) for queue, reason in reasons.items()]
    return found or [_ok("paused_queues", "no messages wait in one")]


def _pause(queue: str, text: str, reason: str | None) -> Finding:
    return _warning("paused_queues", f"{text}: {reason}" if reason else text, f"fencepost resume {queue}")


def _breakers(settings: Iterable[QueueSettings]) -> list[Finding]:
    found = []
    for each in settings:
        if each.breaker is not None:
            failed = f", {_counted(each.breaker.trips, 'probe')} failed" if each.breaker.trips else ""
            text = f"queue {each.queue}: open for {_seconds(each.breaker.open_for)}{failed}: {each.breaker.error}"
            remedy = (
                f"mend its destination: the next probe closes it, or fencepost queue close-breaker {each.queue}"
            )
            found.append(_warning("breakers", text, remedy))
    return found or [_ok("breakers", "none is open")]


def _oldest(rows: Rows) -> list[Finding]:
    ages = [(row[4], row[0]) for row in rows if row[4] is not None and not row[5]]
    if not ages:
        return [_ok("oldest_message", "nothing is due")]
    age, queue = max(ages)
    text = f"queue {queue}: {_seconds(timedelta(microseconds=age))} old"
    if timedelta(microseconds=age) > OLD:
        return [_warning("oldest_message", text, "see fencepost status, fencepost keys and the dispatchers' logs")]
    return [_ok("oldest_message", text)]


def _settings(settings: Iterable[QueueSettings]) -> list[Finding]:
    found = []
    for own in settings:
        for name, text in own.problems() or own.warnings():
            found.append(_warning("queue_settings", f"queue {own.queue}: {name}: {text}", "fencepost queue set"))
    return found or [_ok("queue_settings", "they fit each other")]


# --- words -----------------------------------------------------------------------------------------------


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def _seconds(age: timedelta) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    seconds = max(0, int(age.total_seconds()))
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
