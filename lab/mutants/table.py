"""All mutants, and why some of them cannot be noticed."""

from __future__ import annotations

from lab.mutants import claims, core, jobs, rules, runtime, store, upkeep, writes
from lab.mutants.mutant import marked

EQUIVALENT: dict[str, str] = {
    "run-unlimited": "the first rows of a key, of which a run is made, end at the same limit already",
    "park-the-head": "what is due is free, and a head that is free is no obstacle",
    "purge-dead": "the table lets no dead message have a `done_at`, by which a purge finds what is old",
    "release-below-zero": "the table lets no message be processing without an attempt",
    "job-below-zero": "the table lets no job be processing without an attempt",
}
"""Why no test can notice a mutant, by its name."""

TABLES = (core, rules, claims, writes, jobs, upkeep, store, runtime)

MUTANTS = marked([each for table in TABLES for each in table.MUTANTS], EQUIVALENT)
