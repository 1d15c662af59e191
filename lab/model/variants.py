"""Sabotages of the model. Each must be rejected, and by the property that it was made against."""

from __future__ import annotations

from dataclasses import dataclass

from lab.model.config import Inbox, Outbox, Space


@dataclass(frozen=True, slots=True)
class Variant:
    """One sabotage.

    Args:
        what: what is broken.
        violates: the property that must say so.
        space: where it is looked for.
    """

    what: str
    violates: str
    space: Space


_ALONE = Outbox(workers=1, operator=1)
_ONE = Outbox(workers=1)
_PAIR = Outbox(workers=2)
_CUT_ALONE = Outbox(workers=1, answers_lost=True)
_ONE_KEY = Outbox(workers=1, keys="000", operator=2)
_MANUAL = Outbox(workers=2, operator=1, manual=1)

_STALE, _TOLD = "I2_stale_token_changes_nothing", "I2_lost_lease_is_told"
_CHARGED, _BOUNDS = "I3_attempts_are_charged", "I7_attempts_in_bounds"
_CLAIMED, _ACCEPTED, _FINALIZED = "I4_claimed_in_order", "I4_accepted_in_order", "I4_finalized_in_order"
_SLEEPS, _OWN_KEY = "I1_nothing_sleeps", "I5_dead_head_blocks_its_key_only"
_LEASES, _TOKENS = "I9_one_live_lease", "I9_tokens_rise"
_TERMINAL, _TAKEN = "I12_terminal", "I10_somebody_can_take_it"
_ONE_EFFECT, _NO_LOSS, _NO_TRACE = "I8_one_effect", "I8_no_effect_is_lost", "I8_nothing_is_left_of_a_rollback"

VARIANTS: dict[str, Variant] = {
    # the fence
    "no_token_test": Variant("the fence is status = 'processing' alone", _STALE, _PAIR),
    "no_status_test": Variant("the fence is the token alone", _STALE, _CUT_ALONE),
    "close_by_time": Variant("a close trusts the worker's clock instead of the token", _STALE, _PAIR),
    "heartbeat_without_fence": Variant("a heartbeat renews whatever has its ids", _STALE, _PAIR),
    "repeat_ignores_token": Variant("a repeated finalize looks at the status, not at the token", _TOLD, _PAIR),
    "repeat_refunds_twice": Variant("a repeated defer gives the attempt back again", _CHARGED, _CUT_ALONE),
    # tokens and leases
    "claim_keeps_token": Variant("no claim raises the token", _TOKENS, _PAIR),
    "reclaim_keeps_token": Variant("taking over an expired row does not raise the token", _TOKENS, _PAIR),
    "reap_keeps_token": Variant("a reap does not raise the token", _TOKENS, _ALONE),
    "retry_keeps_token": Variant("an operator's retry does not raise the token", _TOKENS, _ALONE),
    "skip_keeps_token": Variant("an operator's skip does not raise the token", _TOKENS, _ALONE),
    "take_over_before_expiry": Variant("a take-over does not look at the end of the lease", _LEASES, _PAIR),
    "take_over_of_manual": Variant("a take-over ignores recovery 'manual'", "manual_waits_for_a_person", _MANUAL),
    "claim_without_lock": Variant("a claim selects without FOR UPDATE, and does not look again", _LEASES, _PAIR),
    # attempts
    "claim_does_not_charge": Variant("attempts are not counted at the claim", _CHARGED, _PAIR),
    "claim_over_limit": Variant("a claim does not look at the limit", _BOUNDS, _PAIR),
    "reclaim_over_limit": Variant("a take-over does not look at the limit", _BOUNDS, _PAIR),
    "refund_below_zero": Variant(
        "an operator resets the attempts of what is being published, and a refund has no floor", _BOUNDS, _ALONE
    ),
    "reset_of_the_published": Variant("an operator resets what is being published", _CHARGED, _ALONE),
    # order: parking and promoting
    "park_without_heads_lock": Variant("a claim parks behind a head whose lock it does not have", _SLEEPS, _PAIR),
    "release_to_blocked": Variant("what is released is blocked again, not pending", _SLEEPS, _PAIR),
    "promote_in_one_statement": Variant("promote has the snapshot of the close", _SLEEPS, _PAIR),
    "close_without_promote": Variant("a close does not promote", _SLEEPS, _PAIR),
    "skip_without_promote": Variant("a skip does not promote", _SLEEPS, _ALONE),
    "no_key_lock": Variant("finalizes do not lock their keys", _SLEEPS, _ONE_KEY),
    "skip_locks_keys_of_the_dead": Variant(
        "a skip locks the keys of what is dead already, not of what may die by then", _SLEEPS, _ONE_KEY
    ),
    # order: turns
    "run_with_a_gap": Variant("a claim takes what is free, not the run from the head", _CLAIMED, _PAIR),
    "take_over_of_a_follower": Variant("suspects are taken out of their turn", _CLAIMED, _PAIR),
    "no_producers_lock": Variant(
        "ids of a key may be committed in any order", _CLAIMED, Outbox(workers=1, enqueues=True)
    ),
    "publish_past_a_failure": Variant("a worker goes on with a key whose message failed", _ACCEPTED, _ONE),
    "close_out_of_turn": Variant("a close does not look at the open rows before its own", _FINALIZED, _PAIR),
    "close_without_row_locks": Variant("turns are worked out before the rows are locked", _FINALIZED, _PAIR),
    "park_behind_any_key": Variant("a head that is not free parks other keys, too", _OWN_KEY, _PAIR),
    "dead_head_stops_claim": Variant("a head that is not free ends the whole claim", _OWN_KEY, _PAIR),
    # ends
    "reap_over_finalize": Variant("a reap does not look again once it has the lock", _TERMINAL, _ONE_KEY),
    "retry_of_the_done": Variant("an operator's retry takes what is done", _TERMINAL, _ALONE),
    "claim_of_the_dead": Variant("a claim takes what is dead", _TERMINAL, _PAIR),
    "reap_of_manual_only": Variant("what crashed on its last attempt is never buried", _TAKEN, _PAIR),
    # the inbox
    "accept_commits_alone": Variant("the inbox row is committed before the effect", _NO_TRACE, Inbox()),
    "effect_commits_alone": Variant("the effect is committed before the inbox row", _ONE_EFFECT, Inbox()),
    "look_before_insert": Variant("a look, then an INSERT without a unique key", _ONE_EFFECT, Inbox()),
    "conflict_is_a_repeat": Variant("a repeat does not wait for the first one's end", _NO_LOSS, Inbox()),
    "acknowledge_first": Variant("the broker is told before the commit", _NO_LOSS, Inbox()),
    "rollback_keeps_entry": Variant("the inbox row outlives a rolled-back effect", _NO_TRACE, Inbox()),
    "retention_too_short": Variant("entries are purged while the broker may deliver again", _ONE_EFFECT, Inbox()),
}


def number_of(name: str) -> int:
    """Return how the compiled model knows a variant; 0 is fencepost as it is."""
    return 1 + list(VARIANTS).index(name)


def promela() -> str:
    """Write the numbers."""
    lines = [f"#define V_{name} {number_of(name)}" for name in VARIANTS]
    return "\n".join(["/* Written from variants.py. */", *lines, ""])
