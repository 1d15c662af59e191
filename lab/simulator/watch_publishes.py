"""Judges every publish as it starts, and what the receiver takes; names the cause of each that is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fencepost.core.outcome import Verdict
from fencepost.core.records import Message
from fencepost.publishers.base import Delivery
from lab.fake_store.rows import OUTBOX
from lab.simulator.seen import Lease, Publish, Seen, number_in

if TYPE_CHECKING:
    from lab.simulator.process import DispatcherProcess


CHARGED = frozenset({"retry", "raise", "exit", "false failure"})
"""Failures that always cost an attempt."""


class PublishWatch(Seen):
    """The guarantees of publishes."""

    def publish_starts(self, process: DispatcherProcess, message: Message, delivery: Delivery) -> Publish:
        """Note that a publish starts, and judge whether it may."""
        run = self._run
        number = number_in(message.payload)
        row_id, token = message.id, delivery.token
        if self.rows_of.get(number) != row_id or number in run.rolled_back:
            self.violated("I6", f"message {number} was published and is not committed")
        if message.payload != f'{{"n":{number}}}'.encode() or message.event_type != f"event.{number}":
            self.violated("I11", f"message {number} was published with another payload")
        lease = self.leases.get((row_id, token))
        if lease is None or lease.label != process.label:
            self.violated("I2", f"{process.label} publishes row {row_id} under token {token}, which it never had")
            return Publish(number, 1, row_id, token, process, run.world.now, None)
        before = self.publishes.setdefault(row_id, [])
        if run.plan.keeps_ledger and lease.ended is None and (row_id, str(token)) not in self.attempts:
            self.violated("ledger", f"row {row_id} is published under token {token}, which is not written down")
        if any(each.token == token for each in before):
            self.violated("I3", f"row {row_id} is published twice under token {token}")
        elif lease.until < run.database.now() and not run.plan.takes_batches:
            self.violated("I15", f"{process.label} starts to publish row {row_id} after its lease has ended")
        if delivery.attempt > run.plan.max_attempts:
            self.violated("I3", f"row {row_id} is published at attempt {delivery.attempt}")
        failed = sum(each.told in CHARGED for each in before)
        if failed >= run.plan.max_attempts and row_id not in self.touched:
            self.violated("I3", f"row {row_id} is published again, although it has failed {failed} times")
        cause = self._cause_of_another(before[-1], lease) if before else None
        publish = Publish(number, len(before) + 1, row_id, token, process, run.world.now, cause)
        before.append(publish)
        run.trace(*process.label, "publishes", number, "token", token, "again:" if cause else "", cause or "")
        return publish

    def _cause_of_another(self, last: Publish, own: Lease) -> str:
        """Return why a message is published again, after this one."""
        if own.ended is not None:  # late: it is somebody else's by now
            return self._late(own, last.row_id)
        lease = self.leases[last.row_id, last.token]
        if lease.ended in ("taken over", "buried"):
            return self._lost(lease, last.row_id)
        if last.told not in (None, "delivered"):
            return f"reported: {last.told}"
        if lease.ended == "made pending" and lease.out_of_turn:
            return "out of turn"
        if lease.ended == "made pending" and last.told is None:
            return "reported: no end"
        if last.row_id in self.touched:
            return "operator"
        self.violated("I15", f"row {last.row_id} is published again, although it was delivered ({lease.ended})")
        return "unexplained"

    def _late(self, own: Lease, row_id: int) -> str:
        """Return why a publish starts whose lease is over."""
        if own.ended != "taken over" and self._run.plan.takes_batches:
            return "reported: time-out ignored"  # the rest of a batch that its worker has given up on
        return self._lost(own, row_id)

    def _lost(self, lease: Lease, row_id: int) -> str:
        cause = lease.process.why_lost(lease.since - self._run.plan.lease)
        if cause is None:
            self.violated("I15", f"row {row_id} is published again, and nothing cost {lease.label} its lease")
        return cause or "unexplained"

    def told(self, publish: Publish, what: str) -> None:
        """Note what the publisher told the dispatcher; the first that it heard counts, unless it was cut off."""
        if publish.told is None or what == "cut off":
            publish.told = what
        publish.is_said_to_be_delivered |= what == "delivered"
        self._run.trace(*publish.process.label, "was told", publish.number, what)

    def cut_off(self, batch: Iterable[Publish]) -> None:
        """Note that a batch was cut off as a whole."""
        for publish in batch:
            self.told(publish, "cut off")

    def verdict(self, message: Message, token: int) -> Verdict:
        """Say what a receiver knows of the attempts so far."""
        number = number_in(message.payload)
        attempts = [each for each in self.publishes.get(message.id, ()) if each.number == number]
        if any(each.accepted_at for each in attempts):
            self.verified.add((message.id, token))
            return Verdict.DONE
        return Verdict.UNKNOWN if any(each.is_on_its_way for each in attempts) else Verdict.NOT_DONE

    def accepted(self, publish: Publish) -> None:
        """The receiver has taken a message."""
        row_id, run = publish.row_id, self._run
        is_first = not any(each.accepted_at for each in self.publishes[row_id])
        publish.accepted_at.append(run.world.now)
        publish.is_on_its_way = False
        run.trace("receiver", "takes", publish.number, "token", publish.token)
        row = run.database.committed[OUTBOX].get(row_id)
        # (A late one of an earlier attempt is none of the repeats before which the receiver was asked.)
        is_repeat = row is not None and not is_first and publish.token == row.lease_version
        if row is not None and row.recovery_policy == "verify" and is_repeat and row_id not in self.touched:
            self.violated("I15", f"row {row_id} was accepted twice, although the receiver could be asked")
        key = None if row is None else row.ordering_key
        if key is None or not is_first or row_id in self.touched:
            return
        if self.first_accepted.get(key, 0) > row_id:
            self.violated("I4", f"row {row_id} was accepted after row {self.first_accepted[key]} of its key")
        self.first_accepted[key] = max(row_id, self.first_accepted.get(key, 0))

    def duplicates(self) -> Counter[str]:
        """Count what was accepted more than once, by cause."""
        found: Counter[str] = Counter()
        for publishes in self.publishes.values():
            taken = [each for each in publishes if each.accepted_at]
            for each in taken[1:]:
                found[each.cause or "unexplained"] += 1
        return found
