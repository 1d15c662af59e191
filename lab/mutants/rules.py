"""Sabotages of the pure core: jobs, ledger, routing, queues, and what may come in."""

from __future__ import annotations

from lab.mutants.mutant import of

MUTANTS = [
    *of(
        "core/job_states.py",
        "core/test_job store/test_jobs",
        (
            "job-cut-off-charged",
            "the table says that a job cut off by a deploy is charged",
            "(_X, Event.CANCELLED): _by_holder(_Q, Attempts.REFUNDED)",
            "(_X, Event.CANCELLED): _by_holder(_Q, Attempts.KEPT)",
        ),
        (
            "table-job-lost-keeps-token",
            "the table says that a claim and a reclaim of a job keep its token",
            "attempts, raises_token=True, outcome",
            "attempts, outcome",
        ),
    ),
    *of(
        "core/job.py",
        "core/test_job",
        ("job-repeat-late", "a second holder is told that it is the first", "self.fence > 1", "self.fence > 2"),
        (
            "job-verify-never",
            "a second attempt at a job is not verified",
            "is Recovery.VERIFY and self.attempt > 1",
            "is Recovery.VERIFY and self.attempt > 2",
        ),
    ),
    *of(
        "core/ledger.py",
        "core/test_ledger",
        (
            "ledger-lost-harmless",
            "what a lost worker did cannot have arrived",
            "*(AttemptResult.UNKNOWN, AttemptResult.LOST),",
            "AttemptResult.UNKNOWN,",
        ),
        (
            "ledger-endless-harmless",
            "an attempt without an end cannot have arrived",
            " or each.result is None]",
            "]",
        ),
        (
            "ledger-first-cause",
            "the first attempt that may have arrived is the cause, not the last",
            "(arrived or failed or earlier)[-1]",
            "(arrived or failed or earlier)[0]",
        ),
        (
            "ledger-any-retry",
            "an operator's retry of long ago explains an attempt",
            "before.started_at <= at <= attempt.started_at",
            "at <= attempt.started_at",
        ),
    ),
    *of(
        "core/routing.py",
        "core/test_routing",
        (
            "routed-again",
            "what is in a destination's queue is routed again",
            "() if queue in self.names else first_match",
            "first_match",
        ),
        (
            "route-any-pattern",
            "one pattern of a rule is enough",
            "if all(pattern.fullmatch",
            "if any(pattern.fullmatch",
        ),
    ),
    *of(
        "core/queue.py",
        "core/test_queue",
        (
            "queue-timing-unchecked",
            "a publish of a queue may take longer than its lease",
            "            found += _timing(",
            "            _timing(",
        ),
    ),
    *of(
        "core/text.py",
        "core/test_draft",
        ("nul-let-in", "NUL is let in", 'if "\\x00" in value:', 'if "\\x00" == value:'),
        (
            "size-in-characters",
            "a limit counts characters, not bytes",
            "size = len(utf8(name, value))",
            "size = len(value)",
        ),
    ),
    *of(
        "core/draft.py",
        "core/test_draft",
        (
            "key-without-type",
            "aggregates of two types share an ordering key",
            "_dump([aggregate_type, aggregate_id])",
            "_dump([aggregate_id])",
        ),
    ),
]
