"""Scenarios of what the classes of `fencepost.client` put together of several operations of the store."""

from __future__ import annotations

from datetime import timedelta

from tests.store.rows import add, claim, expire

from fencepost import Fence, Outbox
from fencepost.core.fence import entrance
from fencepost.store import enqueue, fence
from lab.crashes.dispatching import held_in_order, some_done, two_tokens, with_ledger
from lab.crashes.producers import HOUR, IDENTITY, message
from lab.crashes.scenario import Make, Repeat, Scenarios
from lab.crashes.world import CATALOG, LEASE, MAX_ATTEMPTS, World

# ruff: noqa: SLF001 - the operations of these classes are their own business: callers get the result

SCENARIOS = Scenarios()
scenario = SCENARIOS


@scenario("client.outbox._claim_in_turn", Repeat.ANEW, both=True)
def suspects_first_and_then_the_others(world: World) -> Make:
    add(world.db, 2)
    return lambda: Outbox()._claim("w1", None, 10, LEASE, MAX_ATTEMPTS)


@scenario("client.outbox._claim_in_turn", Repeat.ANEW)
def one_that_may_have_crashed_a_worker(world: World) -> Make:
    add(world.db, 2)
    claim(world.db)
    expire(world.db)
    return lambda: Outbox()._claim("w1", None, 10, LEASE, MAX_ATTEMPTS)


@scenario("client.outbox._purge_on", Repeat.ANEW, both=True, removes=True)
def what_is_old(world: World) -> Make:
    some_done(world)
    return lambda: Outbox()._purge(HOUR, 2)


@scenario("client.outbox._mark_done", Repeat.SAME, both=True, fenced=True)
def under_two_tokens(world: World) -> Make:
    held = two_tokens(world)
    return lambda: Outbox()._mark_done(held)


@scenario("client.outbox._mark_done", Repeat.SAME, fenced=True)
def two_of_a_key(world: World) -> Make:
    held = held_in_order(world)
    return lambda: Outbox()._mark_done(held)


@scenario("client.operators._attempts", Repeat.SAME)
def by_message_id(world: World) -> Make:
    with_ledger(world)
    world.do(enqueue.enqueue(CATALOG, message(identity=IDENTITY), notify=False))
    claim(world.db)
    return lambda: Outbox()._attempts(IDENTITY)


@scenario("client.forgetting.step", Repeat.STATE, both=True)
def of_a_fence(world: World) -> Make:
    world.do(fence.admit(CATALOG, entrance("r", "x", 1)))
    world.db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '1 day'")
    return lambda: Fence("r", horizon=timedelta(minutes=1))._purge(HOUR, 10)
