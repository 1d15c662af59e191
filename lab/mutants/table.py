"""All mutants, and why some of them cannot be noticed."""

from __future__ import annotations

from lab.mutants import claims, core, jobs, runtime, store, writes
from lab.mutants.mutant import marked

EQUIVALENT: dict[str, str] = {}
"""Why no test can notice a mutant, by its name."""

TABLES = (core, claims, writes, jobs, store, runtime)

MUTANTS = marked([each for table in TABLES for each in table.MUTANTS], EQUIVALENT)

FEW = ("spent-one-late", "reap-keeps-token", "job-fence-stands", "lane-goes-on")
"""One of each kind, quick to notice: core, SQL of messages and of jobs, runtime."""
