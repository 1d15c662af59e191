"""What is run for the report: each part's command, what was asked of it, and what its JSON comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = dict[str, int]
"""What a run counted. The same names in every run of a part, so that runs can be added up."""

DUPLICATES = "duplicates with a named cause"
UNEXPLAINED = "unexplained duplicates"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the lab that can be run.

    Args:
        does: what a reader has to know of it.
        module: its command, ``python -m lab.…``, and the arguments that it always gets.
        quick: further arguments for a run of a minute or two.
        whole: further arguments for the run that was asked for.
        counts: the figure that the bound is about.
        bound: how many there must be; 0 where a run is complete by itself.
        read: makes figures of its JSON.
    """

    name: str
    does: str
    module: Sequence[str]
    quick: Sequence[str]
    whole: Sequence[str]
    counts: str
    bound: int
    read: Callable[[Mapping[str, Any]], Figures]


def _model(found: Mapping[str, Any]) -> Figures:
    spaces = [each for each in found["seen"] if "space" in each]
    variants = [each for each in found["seen"] if "variant" in each]
    return {
        "complete spaces": sum(each["complete"] for each in spaces),
        "states": sum(each.get("states", 0) for each in spaces),
        "violations": sum(not each["holds"] for each in spaces),
        "sabotages rejected": sum(each["holds"] for each in variants),
        "sabotages not rejected": sum(not each["holds"] for each in variants),
    }


def _simulator(found: Mapping[str, Any]) -> Figures:
    duplicates = found["duplicates"]
    unexplained = duplicates.get("unexplained", 0)
    return {
        "schedules": found["schedules"],
        "faults": sum(found["faults"].values()),
        "virtual hours": round(found["virtual_hours"]),
        "publishes": found["publishes"],
        "runs of jobs": found["counts"].get("runs", 0),
        DUPLICATES: sum(duplicates.values()) - unexplained,
        UNEXPLAINED: unexplained,
        "schedules that failed": len(found["failed"]),
    }


def _conformance(found: Mapping[str, Any]) -> Figures:
    return {
        "histories": found["histories"],
        "steps": found["steps"],
        **{f"on {store}": found["histories"] for store in found["stores"] if store != "fake"},
        "disagreements": int(found["disagreement"] is not None),
    }


def _crashes(found: Mapping[str, Any]) -> Figures:
    parts = found["parts"]
    return {
        "scenarios": sum(each["scenarios"] for each in parts),
        "crash points": sum(each["points"] for each in parts),
        "not cut": sum(each["points"] - each["cut"] for each in parts),
        "cut": sum(each["cut"] for each in parts),
        "problems": sum(len(each["problems"]) for each in parts),
    }


def _chaos(found: Mapping[str, Any]) -> Figures:
    guarantees = (found["checker"] or {}).get("guarantees", [])
    again = sum(
        count
        for each in guarantees
        for what, count in each["seen"].items()
        if what.startswith("published again: ")
    )
    unexplained = sum(len(each["violations"]) for each in guarantees if each["name"] == "I15")
    return {
        "faults": sum(found["faults"].values()),
        "kinds of fault": len(found["faults"]),
        "minutes of faults": round(found["minutes"]),
        "messages accepted": found["lines"].get("accepted", 0),
        "runs of jobs": found["lines"].get("job_start", 0),
        DUPLICATES: again,
        UNEXPLAINED: unexplained,
        "violations": sum(len(each["violations"]) for each in guarantees) + len(found["problems"]),
    }


def _stale(found: Mapping[str, Any]) -> Figures:
    return {
        "stale writes": sum(found["writes"].values()),
        "rows changed": found["changed"],
        "not reported as lost": found["believed"],
    }


def _mutants(found: Mapping[str, Any]) -> Figures:
    return {
        "mutants": found["mutants"],
        "killed": found["killed"],
        "survived, with a reason": len(found["survived_with_reason"]),
        "survived, without": len(found["survived_without_reason"]),
    }


def _fuzz(found: Mapping[str, Any]) -> Figures:
    return {
        "cases": found["cases"],
        "kinds of input": len(found["targets"]),
        "failures": sum(len(each["failures"]) for each in found["targets"]),
    }


PARTS: Mapping[str, Part] = {
    each.name: each
    for each in (
        Part(
            "model", "every state of the protocol's model, and its sabotages", ("lab.model",),
            (), ("--full",), "states", 0, _model,
        ),
        Part(
            "simulator", "the shipped dispatcher and worker on a virtual clock, with faults at every await",
            ("lab.simulator",), ("--schedules", "3000"), ("--schedules", "1000000"), "schedules", 1_000_000,
            _simulator,
        ),
        Part(
            "conformance", "random histories on model, fake store and PostgreSQL 18 and 15", ("lab.conformance",),
            ("--histories", "1000"), ("--histories", "20000"), "histories", 20_000, _conformance,
        ),
        Part(
            "crashes", "the session or the process ends at every statement of every operation", ("lab.crashes",),
            ("--every", "20"), (), "cut", 0, _crashes,
        ),
        Part(
            "chaos", "real servers and processes under faults, judged by a program of its own",
            ("lab.chaos", "--covering"), ("--minutes", "1"), ("--minutes", "60"), "faults", 5_000, _chaos,
        ),
        Part(
            "stale", "every write of holders that lost their rows", ("lab.chaos", "stale"),
            ("--count", "2000"), ("--count", "100000"), "stale writes", 100_000, _stale,
        ),
        Part(
            "mutants", "small sabotages of the protocol's code and SQL, against the fast tests", ("lab.mutants",),
            ("--only", "claim.sql"), (), "killed", 100, _mutants,
        ),
        Part(
            "fuzz", "odd and broken input of every kind", ("lab.fuzz",),
            ("--cases", "3000"), ("--cases", "100000"), "cases", 100_000, _fuzz,
        ),
    )
}  # fmt: skip
