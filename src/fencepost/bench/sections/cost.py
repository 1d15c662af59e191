"""What one message costs the database, from its claim to its finalize."""

from __future__ import annotations

from fencepost.bench.bench import Bench
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_most
from fencepost.bench.shipped import TASKS
from fencepost.bench.trial import Run, Trial, measured

NAME = "cost"
MESSAGES = 20_000
KEYS = 1_000
WAL_LIMIT = 450
HOT_KEY_NAME = "ordered, one hot key"

METHOD = (
    f"One dispatcher drains {MESSAGES:,} messages of 200 bytes (batch 100, a task a message). Enqueueing them is "
    "not counted here.",
    "WAL is the difference of pg_current_wal_insert_lsn(), with wal_level replica and no checkpoint in between, "
    "hence without full-page images; wal_level logical writes 2.4 times as much. Statements are what "
    "pg_stat_statements counts for the whole process, its start included. Updates, heap-only (HOT) updates and "
    "dead tuples are what pg_stat_user_tables counts for the outbox.",
)


def measure(bench: Bench) -> Section:
    """Drain unordered and ordered messages."""
    trials = (
        Trial("unordered", kind=TASKS),
        Trial(f"ordered, {KEYS:,} keys", kind=TASKS, keys=KEYS),
        Trial(HOT_KEY_NAME, kind=TASKS, keys=1),
    )
    runs = []
    for trial in trials:
        bench.say(trial.name)
        runs.append(measured(bench.url, trial, bench.count(MESSAGES)))
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(
            Table(
                ("messages", "WAL bytes", "statements", "updates", "HOT of them", "dead tuples", "CPU µs"),
                tuple(_row(run) for run in runs),
            ),
        ),
        charts=(
            Chart(
                NAME,
                "WAL of a message, from its claim to its finalize",
                "messages",
                "bytes",
                tuple(run.contender for run in runs),
                (Series("WAL", tuple(run.per_message("wal_bytes") for run in runs)),),
                kind="bar",
            ),
        ),
        targets=(at_most("WAL of an unordered message", runs[0].per_message("wal_bytes"), WAL_LIMIT, "bytes"),),
    )


def _row(run: Run) -> tuple[str, ...]:
    return (
        run.contender,
        f"{run.per_message('wal_bytes'):.0f}",
        f"{run.per_message('statements'):.3f}",
        f"{run.per_message('updates'):.2f}",
        f"{run.hot_updates / max(1, run.updates):.2f}",
        f"{run.per_message('dead_tuples'):.2f}",
        f"{run.cpu_seconds / run.messages * 1e6:.0f}",
    )
