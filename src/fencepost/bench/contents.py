"""The sections of the report, in their order. Standard library only: the command line reads it for its help."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, str] = {
    "throughput": "Throughput beside a loop in bare SQL",
    "claims": "Claims against depth, history, hot keys, parked messages and workers",
    "hot-key": "One hot key, drained in its order",
    "dead-key": "Free keys behind a hot key whose head is dead",
    "snapshot": "A snapshot held open",
    "latency": "From commit to publish",
    "cost": "What a message costs the database",
    "enqueue": "What an enqueue adds to a business transaction",
    "inbox": "What an inbox adds to a consumer's transaction",
    "memory": "Memory of a dispatcher",
    "jobs": "Jobs: drained, started and kept alive",
    "destinations": "Throughput to a destination beside its client library's own loop",
}


def module_of(section: str) -> str:
    """Return the name of the module that measures a section."""
    return f"fencepost.bench.sections.{section.replace('-', '_')}"
