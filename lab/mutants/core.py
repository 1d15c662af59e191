"""Sabotages of the pure core: what is decided without a database."""

from __future__ import annotations

from lab.mutants.mutant import of

MUTANTS = [
    *of(
        "core/outcome.py",
        "core/test_outcome core/test_states",
        (
            "spent-one-late",
            "a message fails once more than its limit of attempts",
            "is_spent = attempt >= policy.max_attempts and",
            "is_spent = attempt > policy.max_attempts and",
        ),
        (
            "outage-spends",
            "an outage uses up the attempts of a message",
            "is_spent = attempt >= policy.max_attempts and not is_outage",
            "is_spent = attempt >= policy.max_attempts",
        ),
        (
            "manual-timeout-repeats",
            "a time-out under recovery manual is repeated like any failure",
            "if is_unknown and recovery is Recovery.MANUAL:",
            "if is_unknown and recovery is Recovery.VERIFY:",
        ),
        (
            "cut-off-refunds",
            "a publish that was cut off in flight gets its attempt back",
            "return Reschedule(Event.CANCELLED, timedelta(0), result.error, refund_attempt=False, is_unknown=True)",
            "return Reschedule(Event.CANCELLED, timedelta(0), result.error, refund_attempt=True, is_unknown=True)",
        ),
        (
            "cut-off-manual-repeats",
            "a cut-off publish under recovery manual is repeated",
            "if recovery is Recovery.MANUAL or is_last:",
            "if is_last:",
        ),
        (
            "cut-off-verify-last",
            "the last attempt of a message to be verified is repeated, though nobody may ask any more",
            "recovery is Recovery.VERIFY and attempt >= policy.max_attempts",
            "recovery is Recovery.VERIFY and attempt > policy.max_attempts",
        ),
        (
            "defer-charges",
            "a deferred message keeps its charged attempt",
            "return Reschedule(Event.DEFER, max(delay, timedelta(0)), reason, refund_attempt=True)",
            "return Reschedule(Event.DEFER, max(delay, timedelta(0)), reason, refund_attempt=False)",
        ),
        (
            "defer-never-expires",
            "a deferred message never gets too old",
            "    if _is_too_old(policy, age):\n        return Dead(Event.EXPIRE, Outcome.EXPIRED, reason)\n",
            "",
        ),
        (
            "age-one-late",
            "a message of exactly the maximum age lives on",
            "age >= policy.max_age",
            "age > policy.max_age",
        ),
        (
            "receiver-speeds-up",
            "a receiver's wish replaces the backoff, though it may only lengthen it",
            "delay = max(delay, min(failure.delay, policy.backoff.cap))",
            "delay = min(failure.delay, policy.backoff.cap)",
        ),
        (
            "receiver-parks",
            "a receiver's wish is not limited by the cap",
            "delay = max(delay, min(failure.delay, policy.backoff.cap))",
            "delay = max(delay, failure.delay)",
        ),
        (
            "verify-first-outage",
            "the first attempt of a message to be verified is given back in an outage",
            "if recovery is Recovery.VERIFY and attempt == 1:",
            "if recovery is Recovery.VERIFY and attempt == 0:",
        ),
        (
            "verified-is-published",
            "what an earlier attempt delivered counts as delivered by this one",
            "return Done(verified=True) if isinstance(result, Verified) else DONE",
            "return DONE",
        ),
        (
            "foreign-charges",
            "a message that only other workers can publish uses up its attempts",
            "return Reschedule(Event.DEFER, timedelta(0), error, refund_attempt=True)",
            "return Reschedule(Event.DEFER, timedelta(0), error, refund_attempt=False)",
        ),
        (
            "unroutable-is-permanent",
            "a message without a route is called a permanent failure",
            "    if result.unroutable:\n        return Dead(Event.UNROUTABLE, Outcome.UNROUTABLE, result.error)\n",
            "",
        ),
    ),
    *of(
        "core/backoff.py",
        "core/test_backoff",
        (
            "backoff-overflows",
            "no limit to the exponent: the float overflows",
            "if doublings >= 64 or base",
            "if base",
        ),
        (
            "backoff-uncapped",
            "the window grows past its cap",
            ">= cap:\n            return self.cap",
            ">= cap * 2:\n            return self.cap",
        ),
        ("backoff-no-jitter", "always the whole window", "* min(1.0, max(0.0, fraction))", "* 1.0"),
    ),
    *of(
        "core/lease.py",
        "core/test_lease",
        ("lost-turned-round", "what was kept counts as lost", ".difference(kept)", ".intersection(kept)"),
        (
            "trust-too-long",
            "the trust window ends a tenth after its lease",
            "self.sent_at + self.lease - now",
            "self.sent_at + self.lease * 1.1 - now",
        ),
        (
            "window-never-over",
            "a trust window is never over at its end",
            "return self.remaining(now) <= 0.0",
            "return self.remaining(now) < 0.0",
        ),
        (
            "slow-heartbeat-allowed",
            "a heartbeat of half the lease is allowed",
            "if heartbeat > lease / 3:",
            "if heartbeat > lease / 2:",
        ),
        (
            "publish-as-long-as-lease",
            "a publish may take as long as its lease",
            "if publish_timeout >= lease:",
            "if publish_timeout > lease:",
        ),
    ),
    *of(
        "core/states.py",
        "core/test_states store/test_state_machine store/test_transitions",
        ("refund-below-zero", "a refund goes below 0", "return max(0, attempts - 1)", "return attempts - 1"),
        (
            "table-defer-kept",
            "the table says that a defer keeps its attempt",
            "(_X, Event.DEFER): Transition(_P, Attempts.REFUNDED, fenced=True)",
            "(_X, Event.DEFER): Transition(_P, Attempts.KEPT, fenced=True)",
        ),
        (
            "table-done-unfenced",
            "the table says that a delivery needs no fence",
            "Transition(_D, Attempts.KEPT, fenced=True, outcome=Outcome.DELIVERED)",
            "Transition(_D, Attempts.KEPT, outcome=Outcome.DELIVERED)",
        ),
        (
            "table-reap-keeps-token",
            "the table says that a reap keeps the token",
            "Transition(_DEAD, Attempts.KEPT, raises_token=True, outcome=Outcome.CRASHED)",
            "Transition(_DEAD, Attempts.KEPT, outcome=Outcome.CRASHED)",
        ),
    ),
    *of(
        "core/inbox.py",
        "core/test_inbox",
        (
            "inbox-stale-is-repeat",
            "an older token is not told from a repeat",
            "self.fence < fence",
            "self.fence < 0",
        ),
        (
            "inbox-other-body",
            "another body under one message id is not noticed",
            "self.digest != digest",
            "self.digest == b''",
        ),
        (
            "inbox-same-number-again",
            "the last number of a key is taken in once more",
            "sequence <= last:",
            "sequence < last:",
        ),
        (
            "inbox-gap-of-one",
            "one missing number of a key goes unnoticed",
            "sequence > last + 1 and",
            "sequence > last + 2 and",
        ),
    ),
    *of(
        "core/fence.py",
        "core/test_fence store/test_receiver_fence",
        (
            "receiver-takes-older",
            "a receiver takes a write under an older token",
            "self.token >= self.newest",
            "self.token <= self.newest",
        ),
        (
            "receiver-refuses-same",
            "a receiver refuses the same token again",
            "self.token >= self.newest",
            "self.token > self.newest",
        ),
    ),
    *of(
        "core/breaker.py",
        "core/test_breaker",
        (
            "breaker-one-late",
            "the breaker opens one failure late",
            "self.unavailable >= self.threshold",
            "self.unavailable > self.threshold",
        ),
        ("slow-start-to-zero", "slow start halves down to nothing", "max(1, self.most // 2)", "self.most // 2"),
        (
            "breaker-counts-repeats",
            "each failure of one message counts",
            "self.messages.add(message_id)",
            "self.messages.add(len(self.messages))",
        ),
    ),
    *of(
        "core/ticks.py",
        "core/test_ticks",
        (
            "tick-twice",
            "the tick at the last instant comes again",
            "return Due(ticks, ticks[-1])\n",
            "return Due(ticks, last_tick)\n",
        ),
        ("tick-not-at-now", "a tick at this very instant is left out", "tick <= now", "tick < now"),
        (
            "missed-none-runs",
            "a missed tick runs though nobody wants it",
            "if catch_up is CatchUp.LAST else ()",
            "if catch_up is not CatchUp.ALL else ()",
        ),
    ),
    *of(
        "core/error_text.py",
        "core/test_error_text",
        (
            "error-with-nul",
            "NUL stays in error text, and its write fails",
            'text.replace("\\x00", "\\\\x00")',
            "text",
        ),
        ("error-uncut", "error text of any length", "if len(text) > limit:", "if len(text) > limit * 10:"),
    ),
    *of(
        "core/records.py",
        "core/test_records runtime/test_recovery",
        (
            "verify-first-attempt",
            "a first attempt is verified, a second one too",
            "is Recovery.VERIFY and self.attempt > 1",
            "is Recovery.VERIFY and self.attempt > 0",
        ),
        (
            "verify-never",
            "a second attempt is not verified",
            "is Recovery.VERIFY and self.attempt > 1",
            "is Recovery.VERIFY and self.attempt > 2",
        ),
    ),
]
