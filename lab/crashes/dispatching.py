"""Scenarios of a dispatcher: claims, the writes of a holder, expansion, breakers, rates, upkeep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tests.store.ordered import done, take
from tests.store.rows import OUTBOX, add, claim, expire

from fencepost import Claimed
from fencepost.core.ledger import AttemptResult
from fencepost.core.outcome import DONE, Dead, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.store import breaker, doctor, expand, fenced, finalize, ledger, outbox, queues, rate, upkeep
from fencepost.store.expand import Expansion
from lab.crashes.producers import HOUR, dead, sequenced
from lab.crashes.scenario import Make, Repeat, Scenarios
from lab.crashes.world import CATALOG, LEASE, MAX_ATTEMPTS, World

SCENARIOS = Scenarios()
scenario = SCENARIOS
TERMS = outbox.ClaimTerms("w1", LEASE, MAX_ATTEMPTS)
ZERO = timedelta(0)


def with_ledger(world: World, queue: str = "default") -> None:
    world.do(queues.change(CATALOG, queue, {"ledger": True}, actor="op", notify=False))


def often_tried(world: World) -> None:
    """Let everything have had attempts before: a refund that is made twice shows."""
    world.db.execute("UPDATE outbox SET attempts = attempts + 3")


def two_tokens(world: World) -> list[Claimed]:
    """Messages held under two tokens."""
    add(world.db, 2)
    claim(world.db)
    expire(world.db)
    add(world.db, 2)
    held = take(world.db).claimed
    held += world.do(outbox.claim_suspects(CATALOG, TERMS, queues=["default"], batch=2)).claimed
    often_tried(world)
    return held


def held_in_order(world: World, behind: int = 2) -> list[Claimed]:
    """The first two of a key, held, with some parked behind them."""
    add(world.db, 2, ordering_key="k")
    held = take(world.db).claimed
    add(world.db, behind, ordering_key="k")
    take(world.db)
    often_tried(world)
    return held


# --- claims --------------------------------------------------------------------------------------------


@scenario("outbox.claim", Repeat.ANEW, both=True)
def of_two_queues(world: World) -> Make:
    add(world.db, 2)
    add(world.db, 2, queue="other")
    return lambda: outbox.claim(CATALOG, TERMS, queues=None, batch=10)


@scenario("outbox.claim", Repeat.ANEW, both=True)
def over_the_limit_first(world: World) -> Make:
    add(world.db, 2)
    world.db.execute("UPDATE outbox SET attempts = 12")
    add(world.db, 2)
    return lambda: outbox.claim(CATALOG, TERMS, queues=["default"], batch=2)


@scenario("outbox.claim", Repeat.ANEW, both=True)
def parking_behind_a_dead_head(world: World) -> Make:
    dead(world, 1, ordering_key="k")
    add(world.db, 3, ordering_key="k")
    add(world.db, 1, ordering_key="l")
    return lambda: outbox.claim(CATALOG, TERMS, queues=["default"], batch=10, scan=outbox.Scan(statements=1))


@scenario("outbox.claim", Repeat.ANEW)
def with_a_ledger(world: World) -> Make:
    with_ledger(world)
    add(world.db, 2)
    return lambda: outbox.claim(CATALOG, TERMS, queues=["default"], batch=10)


@scenario("outbox.claim_suspects", Repeat.ANEW, both=True)
def of_a_crash(world: World) -> Make:
    add(world.db, 2, ordering_key="k")
    claim(world.db)
    expire(world.db)
    return lambda: outbox.claim_suspects(CATALOG, TERMS, queues=["default"])


@scenario("outbox.claim_suspects", Repeat.ANEW)
def of_a_crash_with_a_ledger(world: World) -> Make:
    with_ledger(world)
    add(world.db, 2)
    claim(world.db)
    expire(world.db)
    return lambda: outbox.claim_suspects(CATALOG, TERMS, queues=None, batch=2)


@scenario("outbox.reap", Repeat.STATE, both=True)
def in_two_queues(world: World) -> Make:
    add(world.db, 2, recovery="manual")
    add(world.db, 2, queue="other", recovery="manual")
    claim(world.db)
    expire(world.db)
    return lambda: outbox.reap(CATALOG, queues=["default", "other"], max_attempts=MAX_ATTEMPTS, limit=10)


@scenario("outbox.open_queues", Repeat.SAME, alone=True)
def from_the_middle(world: World) -> Make:
    for name in ("a", "b", "c"):
        add(world.db, queue=name)
    return lambda: outbox.open_queues(CATALOG, rotation=outbox.Rotation("c"), limit=2)


@scenario("rate.claim_within_rate", Repeat.ANEW)
def one_of_two(world: World) -> Make:
    world.do(queues.change(CATALOG, "default", {"rate": 1000.0, "ledger": True}, actor="op", notify=False))
    add(world.db, 2)
    return lambda: rate.claim_within_rate(
        CATALOG, "default", 1, lambda many: outbox.claim(CATALOG, TERMS, queues=["default"], batch=many)
    )


# --- the writes of a holder ----------------------------------------------------------------------------


@scenario("fenced.heartbeat", Repeat.SAME, alone=True, fenced=True)
def under_two_tokens_and_one_is_lost(world: World) -> Make:
    held = two_tokens(world)
    expire(world.db, [held[0].id])
    claim(world.db, owner="w3")
    return lambda: fenced.heartbeat(CATALOG, held, LEASE)


@scenario("fenced.mark_done", Repeat.SAME, both=True, fenced=True)
def under_two_tokens(world: World) -> Make:
    held = two_tokens(world)
    return lambda: fenced.mark_done(CATALOG, held)


@scenario("fenced.mark_done", Repeat.SAME, fenced=True)
def in_order_with_two_parked_behind(world: World) -> Make:
    held = held_in_order(world)
    return lambda: fenced.mark_done(CATALOG, held)


@scenario("fenced.close", Repeat.STATE, fenced=True)
def in_order_and_out_of_order(world: World) -> Make:
    add(world.db, 1)
    loose = take(world.db).claimed
    held = held_in_order(world)
    return lambda: fenced.close(CATALOG, [*loose, held[0]], [held[1]])


@scenario("fenced.close", Repeat.ANEW, fenced=True)
def out_of_turn(world: World) -> Make:
    held = held_in_order(world)
    expire(world.db, [held[0].id])
    claim(world.db, owner="w3")
    return lambda: fenced.close(CATALOG, held)


@scenario("fenced.reschedule", Repeat.SAME, both=True, fenced=True)
def a_retry_and_a_defer_under_two_tokens(world: World) -> Make:
    held = two_tokens(world)
    entries = [fenced.Rescheduled(each, HOUR, "e", n % 2 == 0) for n, each in enumerate(held)]
    return lambda: fenced.reschedule(CATALOG, entries)


@scenario("fenced.mark_dead", Repeat.SAME, both=True, fenced=True)
def with_two_outcomes(world: World) -> Make:
    outcomes = (Outcome.PERMANENT, Outcome.EXHAUSTED)
    entries = [fenced.Buried(each, outcomes[n % 2], "e") for n, each in enumerate(two_tokens(world))]
    return lambda: fenced.mark_dead(CATALOG, entries)


@scenario("fenced.release", Repeat.SAME, both=True, fenced=True)
def given_back_under_two_tokens(world: World) -> Make:
    held = two_tokens(world)
    return lambda: fenced.release(CATALOG, held)


def decided(held: Sequence[Claimed]) -> list[finalize.Decided]:
    actions = (
        DONE,
        Reschedule(Event.RETRY, HOUR, "e", refund_attempt=False),
        Reschedule(Event.DEFER, HOUR, "e", refund_attempt=True),
        Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "e"),
        Release(),
    )
    return [(each, actions[n % len(actions)]) for n, each in enumerate(held)]


@scenario("finalize.finalize", Repeat.SAME, both=True, fenced=True)
def each_kind_of_result(world: World) -> Make:
    add(world.db, 5)
    held = take(world.db).claimed
    often_tried(world)
    return lambda: finalize.finalize(CATALOG, decided(held))


@scenario("finalize.finalize", Repeat.SAME, fenced=True)
def each_kind_of_result_with_a_ledger(world: World) -> Make:
    with_ledger(world)
    add(world.db, 5)
    held = take(world.db).claimed
    often_tried(world)
    return lambda: finalize.finalize(CATALOG, decided(held))


@scenario("finalize.finalize", Repeat.SAME, fenced=True)
def the_first_of_a_key_and_the_second_goes_back(world: World) -> Make:
    held = held_in_order(world)
    return lambda: finalize.finalize(CATALOG, [(held[0], DONE), (held[1], Release())])


@scenario("ledger.recorded", Repeat.SAME, fenced=True)
def a_delivery(world: World) -> Make:
    with_ledger(world)
    add(world.db, 2)
    held = take(world.db).claimed
    return lambda: ledger.recorded(
        CATALOG, fenced.mark_done(CATALOG, held), held, lambda each: (AttemptResult.DELIVERED, None)
    )


@scenario("expand.close_and_expand", Repeat.STATE, fenced=True)
def two_of_a_key_to_two_destinations_one_of_which_counts(world: World) -> Make:
    sequenced(world, "hook")
    held = held_in_order(world)
    return lambda: expand.close_and_expand(CATALOG, [], [Expansion(each, ("hook", "kafka")) for each in held])


@scenario("expand.close_and_expand", Repeat.STATE, fenced=True)
def one_and_a_delivery_beside_it(world: World) -> Make:
    add(world.db, 2)
    held = take(world.db).claimed
    return lambda: expand.close_and_expand(CATALOG, held[:1], [Expansion(held[1], ("hook", "kafka"))])


# --- breakers ------------------------------------------------------------------------------------------


def opened(world: World, pause: timedelta = ZERO) -> None:
    world.do(breaker.open_breaker(CATALOG, "default", pause=pause, error="down"))


@scenario("breaker.open_breaker", Repeat.STATE, alone=True)
def of_a_queue_without_settings(world: World) -> Make:
    return lambda: breaker.open_breaker(CATALOG, "default", pause=HOUR, error="down")


@scenario("breaker.note_unavailable", Repeat.ANEW, both=True)
def at_the_threshold(world: World) -> Make:
    return lambda: breaker.note_unavailable(CATALOG, "default", threshold=1, pause=HOUR, error="down")


@scenario("breaker.note_delivered", Repeat.SAME, alone=True)
def after_a_failure(world: World) -> Make:
    world.do(breaker.note_unavailable(CATALOG, "default", threshold=9, pause=HOUR, error="down"))
    return lambda: breaker.note_delivered(CATALOG, "default")


@scenario("breaker.take_probe", Repeat.ANEW, alone=True)
def due(world: World) -> Make:
    opened(world)
    return lambda: breaker.take_probe(CATALOG, "default", patience=HOUR)


@scenario("breaker.claim_probe", Repeat.ANEW)
def of_a_message(world: World) -> Make:
    add(world.db, 2)
    opened(world)
    return lambda: breaker.claim_probe(CATALOG, TERMS, "default", patience=HOUR)


@scenario("breaker.claim_probe", Repeat.ANEW)
def with_nothing_due(world: World) -> Make:
    opened(world)
    return lambda: breaker.claim_probe(CATALOG, TERMS, "default", patience=HOUR)


@scenario("breaker.close_breaker", Repeat.STATE, both=True)
def by_a_probe(world: World) -> Make:
    opened(world)
    version = world.do(breaker.take_probe(CATALOG, "default", patience=HOUR))
    return lambda: breaker.close_breaker(CATALOG, "default", version=version, notify=True)


@scenario("breaker.reopen_breaker", Repeat.STATE, alone=True)
def by_a_probe_that_failed(world: World) -> Make:
    opened(world)
    version = world.do(breaker.take_probe(CATALOG, "default", patience=HOUR)) or 0
    return lambda: breaker.reopen_breaker(CATALOG, "default", version=version, pause=HOUR, error="down")


# --- upkeep --------------------------------------------------------------------------------------------


def some_done(world: World) -> None:
    add(world.db, 3)
    OUTBOX.mark_done(world.db, claim(world.db))
    world.db.execute(
        "UPDATE outbox SET done_at = now() - interval '1 day', created_at = now() - interval '2 days'"
    )
    add(world.db, 1)


@scenario("upkeep.purge", Repeat.ANEW, both=True, removes=True)
def what_is_old(world: World) -> Make:
    some_done(world)
    return lambda: upkeep.purge(CATALOG, older_than=HOUR, limit=2)


@scenario("ledger.purge", Repeat.STATE, both=True)
def old_attempts(world: World) -> Make:
    with_ledger(world)
    add(world.db, 2)
    done(world.db, take(world.db).claimed)
    world.db.execute("UPDATE outbox_attempt SET started_at = now() - interval '1 day', ended_at = now()")
    return lambda: ledger.purge(CATALOG, older_than=HOUR, limit=10)


@scenario("upkeep.purge_holder", Repeat.SAME)
def nobody(world: World) -> Make:
    return lambda: upkeep.purge_holder(CATALOG)


@scenario("upkeep.stats", Repeat.SAME)
def of_some(world: World) -> Make:
    some_done(world)
    return lambda: upkeep.stats(CATALOG)


@scenario("doctor.examine", Repeat.STATE)
def of_what_there_is(world: World) -> Make:
    some_done(world)
    return lambda: doctor.examine(CATALOG)
