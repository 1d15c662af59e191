"""Scenarios of those outside of the workers: producers, consumers, receivers, operators."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

from tests.store.ordered import done, take
from tests.store.rows import OUTBOX, add, claim, expire

from fencepost import NewMessage
from fencepost.core import draft as core
from fencepost.core.fence import entrance
from fencepost.core.inbox import entry
from fencepost.core.ledger import Kind
from fencepost.store import enqueue, fence, forget, inbox, keys, ledger, operators, order, queues
from lab.crashes.scenario import Make, Repeat, Scenarios
from lab.crashes.world import CATALOG, World

SCENARIOS = Scenarios()
scenario = SCENARIOS
HOUR = timedelta(hours=1)
IDENTITY = UUID(int=7)
BY = {"actor": "op", "reason": "why"}


def message(queue: str = "default", identity: UUID | None = None, **options: object) -> core.Draft:
    made = NewMessage(event_type="e", payload={"n": 1}, queue=queue, **options)  # type: ignore[arg-type]  # our own
    return core.draft(made, identity or uuid4())


def sequenced(world: World, queue: str = "default") -> None:
    world.do(queues.change(CATALOG, queue, {"sequenced": True}, actor="op", notify=False))


def dead(world: World, count: int = 2, **options: object) -> list[int]:
    """Dead messages, each with a parked one behind it where they have a key."""
    row_ids = add(world.db, count, **options)
    held = claim(world.db, batch=count)
    OUTBOX.mark_dead(world.db, held, error="dead")
    return row_ids


# --- producers -----------------------------------------------------------------------------------------


@scenario("enqueue.enqueue", Repeat.ONCE)
def of_a_key_in_a_queue_that_counts(world: World) -> Make:
    sequenced(world)
    made = message(ordering_key="k", identity=IDENTITY)
    return lambda: enqueue.enqueue(CATALOG, made, notify=True)


@scenario("enqueue.enqueue", Repeat.STATE)
def with_a_dedupe_key(world: World) -> Make:
    made = message(dedupe_key="d")
    return lambda: enqueue.enqueue(CATALOG, made, notify=True)


@scenario("enqueue.enqueue", Repeat.STATE)
def with_a_dedupe_key_that_is_there_in_a_queue_that_counts(world: World) -> Make:
    sequenced(world)
    made = message(dedupe_key="d", ordering_key="k")
    world.do(enqueue.enqueue(CATALOG, made, notify=False))
    return lambda: enqueue.enqueue(CATALOG, made, notify=True)


@scenario("enqueue.enqueue_many", Repeat.ONCE)
def of_several_keys_and_queues(world: World) -> Make:
    sequenced(world, "b")
    made = [
        message("a", ordering_key="k"),
        message("b", ordering_key="k"),
        message("b", ordering_key="l"),
        message("b"),
    ]
    return lambda: enqueue.enqueue_many(CATALOG, made, notify=True)


@scenario("enqueue.enqueue_many", Repeat.STATE)
def with_dedupe_keys_one_of_which_is_there(world: World) -> Make:
    sequenced(world)
    world.do(enqueue.enqueue(CATALOG, message(dedupe_key="d1", ordering_key="k"), notify=False))
    made = [message(dedupe_key=f"d{n}", ordering_key="k") for n in range(3)]
    return lambda: enqueue.enqueue_many(CATALOG, made, notify=True)


@scenario("enqueue.enqueue_events", Repeat.ONCE)
def for_two_destinations_each(world: World) -> Make:
    events = [[message(queue, identity=UUID(int=n)) for queue in ("hook", "kafka")] for n in range(2)]
    return lambda: enqueue.enqueue_events(CATALOG, events, notify=True)


@scenario("order.draw_numbers", Repeat.ANEW)
def of_two_keys(world: World) -> Make:
    made = [message(ordering_key=key) for key in ("k", "l", "k")]
    return lambda: order.draw_numbers(CATALOG, made)


# --- consumers and receivers ---------------------------------------------------------------------------


@scenario("inbox.accept", Repeat.STATE)
def new(world: World) -> Make:
    return lambda: inbox.accept(CATALOG, entry("c", "m", 3, b"body"))


@scenario("inbox.accept", Repeat.SAME)
def there_already(world: World) -> Make:
    world.do(inbox.accept(CATALOG, entry("c", "m", 3, b"body")))
    return lambda: inbox.accept(CATALOG, entry("c", "m", 2, b"body"))


@scenario("inbox.accept_in_sequence", Repeat.STATE)
def the_first_of_a_key(world: World) -> Make:
    return lambda: inbox.accept_in_sequence(CATALOG, "c", "k", 1, allow_gap=False, first=1)


@scenario("inbox.accept_in_sequence", Repeat.STATE)
def the_next_of_a_key(world: World) -> Make:
    world.do(inbox.accept_in_sequence(CATALOG, "c", "k", 1, allow_gap=False, first=1))
    return lambda: inbox.accept_in_sequence(CATALOG, "c", "k", 2, allow_gap=False, first=1)


@scenario("inbox.purge", Repeat.STATE, both=True)
def old_entries(world: World) -> Make:
    world.do(inbox.accept(CATALOG, entry("c", "m", None, None)))
    world.db.execute("UPDATE outbox_inbox SET accepted_at = now() - interval '1 day'")
    world.do(inbox.accept(CATALOG, entry("c", "n", None, None)))
    return lambda: inbox.purge(CATALOG, "c", older_than=HOUR, limit=10)


@scenario("fence.admit", Repeat.SAME)
def a_newer_token(world: World) -> Make:
    world.do(fence.admit(CATALOG, entrance("r", "x", 1)))
    return lambda: fence.admit(CATALOG, entrance("r", "x", 2))


@scenario("fence.admit", Repeat.SAME)
def an_older_token(world: World) -> Make:
    world.do(fence.admit(CATALOG, entrance("r", "x", 3)))
    return lambda: fence.admit(CATALOG, entrance("r", "x", 2))


@scenario("fence.purge", Repeat.STATE)
def old_resources(world: World) -> Make:
    world.do(fence.admit(CATALOG, entrance("r", "x", 1)))
    world.db.execute("UPDATE outbox_fence SET admitted_at = now() - interval '1 day'")
    return lambda: fence.purge(CATALOG, "r", older_than=HOUR, limit=10)


@scenario("forget.forget", Repeat.STATE)
def by_itself(world: World) -> Make:
    whose = {"receiver": "r"}
    return lambda: forget.forget(CATALOG, "fence_purge", whose, older_than=HOUR, limit=10, after=0)


@scenario("inbox.has_accepted", Repeat.SAME)
def _(world: World) -> Make:
    return lambda: inbox.has_accepted(CATALOG, "c", "m")


@scenario("inbox.last_in_sequence", Repeat.SAME)
def holding_the_key(world: World) -> Make:
    world.do(inbox.accept_in_sequence(CATALOG, "c", "k", 1, allow_gap=False, first=1))
    return lambda: inbox.last_in_sequence(CATALOG, "c", "k")


@scenario("inbox.consumers", Repeat.SAME)
def one_of_them(world: World) -> Make:
    world.do(inbox.accept(CATALOG, entry("c", "m", None, None)))
    return lambda: inbox.consumers(CATALOG, after="", limit=10)


# --- operators -----------------------------------------------------------------------------------------


@scenario("operators.retry_dead", Repeat.STATE, operator=True)
def two_dead_ones(world: World) -> Make:
    row_ids = dead(world)
    return lambda: operators.retry_dead(CATALOG, row_ids, notify=True, actor="op", reason="why")


@scenario("operators.skip_dead", Repeat.STATE, operator=True)
def the_head_of_a_key_with_two_parked_behind_it(world: World) -> Make:
    row_ids = dead(world, 1, ordering_key="k")
    add(world.db, 2, ordering_key="k")
    assert take(world.db).parked == 2  # noqa: S101 - else it would be another scenario
    return lambda: operators.skip_dead(CATALOG, row_ids, notify=True, actor="op", reason="why")


@scenario("keys.freed", Repeat.SAME)
def by_a_retry(world: World) -> Make:
    row_ids = dead(world, 1, ordering_key="k")
    add(world.db, 2, ordering_key="k")
    world.do(operators.retry_dead(CATALOG, row_ids, notify=True, actor="op", reason="why"))
    return lambda: keys.freed(CATALOG, row_ids)


@scenario("operators.list_dead", Repeat.SAME)
def all_of_them(world: World) -> Make:
    dead(world)
    return lambda: operators.list_dead(CATALOG, queue=None, outcome=None, after=0, limit=10)


@scenario("operators.show", Repeat.SAME)
def by_row_and_message(world: World) -> Make:
    dead(world)
    return lambda: operators.show(CATALOG, uuid4())


@scenario("operators.show_all", Repeat.SAME)
def by_message(world: World) -> Make:
    dead(world)
    return lambda: operators.show_all(CATALOG, uuid4())


@scenario("keys.blocked_keys", Repeat.SAME)
def behind_a_dead_one(world: World) -> Make:
    dead(world, 1, ordering_key="k")
    add(world.db, 2, ordering_key="k")
    return lambda: keys.blocked_keys(CATALOG, queue=None, after=None, limit=10, include_leased=True)


@scenario("ledger.attempts", Repeat.SAME)
def with_a_lost_one(world: World) -> Make:
    world.do(queues.change(CATALOG, "default", {"ledger": True}, actor="op", notify=False))
    row_ids = add(world.db)
    claim(world.db)
    expire(world.db)
    claim(world.db)
    return lambda: ledger.attempts(CATALOG, Kind.MESSAGE, row_ids)


@scenario("queues.change", Repeat.STATE)
def two_settings(world: World) -> Make:
    return lambda: queues.change(CATALOG, "default", {"weight": 3, "ledger": True}, actor="op", notify=True)


@scenario("queues.set_paused", Repeat.STATE)
def pause(world: World) -> Make:
    return lambda: queues.set_paused(CATALOG, "default", True, actor="op", notify=True, reason="why")


@scenario("queues.set_paused", Repeat.STATE)
def resume(world: World) -> Make:
    world.do(queues.set_paused(CATALOG, "default", True, actor="op", notify=True))
    return lambda: queues.set_paused(CATALOG, "default", False, actor="op", notify=True)


@scenario("queues.queue_settings", Repeat.SAME)
def of_one(world: World) -> Make:
    world.do(queues.set_paused(CATALOG, "default", True, actor="op", notify=True))
    return lambda: queues.queue_settings(CATALOG)


@scenario("queues.has_open", Repeat.SAME)
def with_one(world: World) -> Make:
    add(world.db)
    return lambda: queues.has_open(CATALOG, "default")


@scenario("keys.promote_stranded", Repeat.STATE, strands=True)
def after_somebody_deleted_the_head(world: World) -> Make:
    (head,) = dead(world, 1, ordering_key="k")
    add(world.db, 2, ordering_key="k")
    done(world.db, [])
    take(world.db)
    world.db.execute("DELETE FROM outbox WHERE id = %s", [head])
    return lambda: keys.promote_stranded(CATALOG, after=None, limit=100)


@scenario("order.give_number_back", Repeat.ANEW)
def of_a_message_that_was_there(world: World) -> Make:
    made = message(ordering_key="k")
    world.do(order.draw_numbers(CATALOG, [made]))
    return lambda: order.give_number_back(CATALOG, made)
