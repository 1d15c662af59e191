"""What a run prints: its faults, what went through it, each duplicate's cause and each guarantee's verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.chaos.conductor import Outcome

OWN_FAULTS = ("poison", "loop_blocked")
"""Faults that messages bring along, written down by the processes themselves."""
_CAUSE_OF = ("published again: ", "arrived again: ")


def counted(folder: Path) -> Counter[str]:
    """Count the lines of a history by kind, and what messages did to their workers."""
    found: Counter[str] = Counter()
    for file in sorted(folder.glob("*.jsonl")):
        for text in file.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # cut short by a kill
            found[line["kind"]] += len(line["message_ids"]) if "message_ids" in line else 1
            if line["kind"] == "fault" and line["fault"] in OWN_FAULTS:
                found[line["fault"]] += 1
    return found


def as_dict(seed: int, minutes: float, outcome: Outcome, verdict: dict[str, Any] | None) -> dict[str, Any]:
    """Return all of it, for a script."""
    lines = counted(outcome.folder)
    return {
        "seed": seed,
        "minutes": minutes,
        "clean": is_clean(outcome, verdict),
        "seconds": round(outcome.seconds, 1),
        "drained_in": outcome.drained_in,
        "faults": dict(outcome.applied) | {kind: lines[kind] for kind in OWN_FAULTS if lines[kind]},
        "missed": dict(outcome.missed),
        "exits": dict(outcome.exits),
        "longest_end": round(outcome.longest_end, 2),
        "lines": dict(lines),
        "problems": outcome.problems,
        "checker": verdict,
    }


def is_clean(outcome: Outcome, verdict: dict[str, Any] | None) -> bool:
    """Whether neither the conductor nor the checker found anything."""
    return not outcome.problems and verdict is not None and bool(verdict.get("clean"))


def as_lines(told: dict[str, Any]) -> Iterator[str]:
    """Yield it for a person."""
    faults = Counter(told["faults"])
    yield f"{sum(faults.values())} faults ({sum(told['missed'].values())} more had nobody to hit):"
    yield from (f"  {kind:20} {count}" for kind, count in faults.most_common())
    yield f"exits: {told['exits']}; the slowest end after SIGTERM took {told['longest_end']:.2f} s"
    lines = Counter(told["lines"])
    yield (
        f"messages: {lines['enqueue']} enqueued, {lines['commit']} committed, {lines['commit_unknown']} perhaps, "
        f"{lines['refused']} refused, {lines['publish_start']} published, {lines['accepted']} accepted; "
        f"{lines['job_start']} runs of jobs"
    )
    drained = "not at all" if told["drained_in"] is None else f"in {told['drained_in']:.1f} s"
    yield f"drained {drained}; {told['seconds']:.0f} s in all"
    verdict = told["checker"]
    yield from _verdict(verdict) if verdict and "guarantees" in verdict else (f"the checker: {verdict}",)
    yield from (f"PROBLEM: {problem}" for problem in told["problems"])


def _verdict(verdict: dict[str, Any]) -> Iterator[str]:
    for each in verdict["guarantees"]:
        yield f"{each['name']:6} {each['verdict']:9} {each['judged']:7}  {each['rule']}"
        yield from (
            f"{'':26}{count} {what}"
            for what, count in sorted(each["seen"].items())
            if count and what.startswith(_CAUSE_OF)
        )
        yield from (f"{'':8}! {violation}" for violation in each["violations"][:10])
