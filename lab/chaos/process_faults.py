"""Faults of processes and of their paths to the database and the broker."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import psycopg

from fencepost.errors import EmbeddedError
from lab.chaos.book import Book
from lab.chaos.cluster import Cluster
from lab.chaos.places import Place
from lab.chaos.schedule import Planned
from lab.chaos.terms import JOB_LEASE, LEASE

SKEWS = ("-1h", "+1h", "+10y", "+0", "+90s")


class ProcessFaults:
    """What is done to one process; each returns whether there was one to do it to.

    Args:
        places: the processes.
        cluster: the database, which is told to end one of a process's backends.
        book: where it is written down.
    """

    def __init__(self, places: Sequence[Place], cluster: Cluster, book: Book) -> None:
        self._places, self._cluster, self._book = places, cluster, book

    def sigkill(self, planned: Planned) -> bool:
        place = aimed(planned, [each for each in self._places if each.alive and each.kind.may_be_killed])
        if place is None:
            return False
        self._book.begin("sigkill", place.process_name)
        place.send(signal.SIGKILL)
        return True

    def sigterm(self, planned: Planned) -> bool:
        place = aimed(planned, [e for e in self._at_work() if e.kind.role in ("worker", "job_worker")])
        if place is None:
            return False
        self._book.begin("sigterm", place.process_name)
        place.tell_to_end()
        return True

    def sigstop(self, planned: Planned) -> bool:
        place = aimed(planned, self._at_work())
        if place is None:
            return False
        lease = JOB_LEASE if place.kind.role == "job_worker" else LEASE
        fault_id = self._book.begin("sigstop", place.process_name)
        place.freeze()
        frozen = place.process

        def thaw() -> None:
            if place.process is frozen:
                place.thaw()
            self._book.end(fault_id)

        # Mostly about as long as a lease, at times five of them.
        self._book.later(lease * (0.5 + 4.5 * planned.size**2), thaw)
        return True

    def clock_skew(self, planned: Planned) -> bool:
        place = aimed(planned, [each for each in self._places if each.alive and each.skew is not None])
        if place is None:
            return False
        skew = SKEWS[int(planned.size * len(SKEWS))]
        fault_id = self._book.begin("clock_skew", place.process_name, detail=skew)
        place.set_clock(skew)
        self._book.later(LEASE, lambda: self._book.end(fault_id))
        return True

    def cut(self, planned: Planned) -> bool:
        place = aimed(planned, self._at_work())
        if place is None:
            return False
        self._book.begin("cut", place.process_name)
        place.database.reset()
        return True

    def backend_terminated(self, planned: Planned) -> bool:
        place = aimed(planned, self._at_work())
        if place is None or not (ports := place.database.server_ports()):
            return False
        port = ports[int(planned.size * len(ports))]
        query = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = %s"
        try:
            with self._cluster.connect() as conn:
                self._book.begin("cut", place.process_name, detail="backend terminated")
                return bool(conn.execute(query, [port]).fetchall())
        except (psycopg.OperationalError, EmbeddedError):
            return False  # the server is down itself

    def lost_answer(self, planned: Planned) -> bool:
        """Lose the answer to whatever is asked next: most statements of a worker commit by themselves."""
        place = self._free_path(planned)
        if place is None:
            return False
        fault_id = self._book.begin("lost_commit_answer", place.process_name, detail="any statement")
        before = place.database.cuts
        place.database.cut_answer()
        self._book.trap(place.database, planned, fault_id, lambda: place.database.cuts > before)
        return True

    def lost_commit_answer(self, planned: Planned) -> bool:
        return self._at_commit(planned, "lost_commit_answer", answer_only=True)

    def lost_commit(self, planned: Planned) -> bool:
        return self._at_commit(planned, "cut", answer_only=False)

    def _at_commit(self, planned: Planned, name: str, *, answer_only: bool) -> bool:
        place = self._free_path(planned)
        if place is None:
            return False
        fault_id = self._book.begin(name, place.process_name, detail="at COMMIT")
        before = place.database.commits_cut
        place.database.lose_commit(answer_only=answer_only)
        self._book.trap(place.database, planned, fault_id, lambda: place.database.commits_cut > before)
        return True

    def black_hole(self, planned: Planned) -> bool:
        place = self._free_path(planned)
        if place is None:
            return False
        fault_id = self._book.begin("black_hole", place.process_name)
        self._book.trapped.add(place.database)
        swallow = place.database.mute if planned.size < 0.5 else place.database.black_hole
        swallow()

        def heal() -> None:
            self._book.trapped.discard(place.database)
            place.database.heal()
            self._book.end(fault_id)

        self._book.later(LEASE * (0.2 + 1.5 * planned.size), heal)
        return True

    def receiver_cut(self, planned: Planned) -> bool:
        place = self._with_broker(planned)
        if place is None:
            return False
        self._book.begin("receiver_cut", place.process_name)
        place.broker.reset()
        return True

    def receiver_lost_ack(self, planned: Planned) -> bool:
        """The broker has it, and its acknowledgement does not arrive."""
        place = self._with_broker(planned)
        if place is None:
            return False
        fault_id = self._book.begin("receiver_cut", place.process_name, detail="answer lost")
        before = place.broker.cuts
        place.broker.cut_answer()
        self._book.trap(place.broker, planned, fault_id, lambda: place.broker.cuts > before)
        return True

    def _at_work(self) -> list[Place]:
        return [each for each in self._places if each.at_work]

    def _free_path(self, planned: Planned) -> Place | None:
        return aimed(planned, [each for each in self._at_work() if each.database not in self._book.trapped])

    def _with_broker(self, planned: Planned) -> Place | None:
        possible = [each for each in self._at_work() if each.kind.role in ("worker", "consumer")]
        return aimed(planned, [each for each in possible if each.broker not in self._book.trapped])


def aimed(planned: Planned, possible: Sequence[Place]) -> Place | None:
    """Return the place that a fault hits, if there is one."""
    return possible[int(planned.aim * len(possible))] if possible else None
