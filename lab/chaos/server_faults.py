"""Faults of the servers: of PostgreSQL and of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.chaos.book import Book
from lab.chaos.broker import Broker
from lab.chaos.cluster import Cluster
from lab.chaos.places import Place
from lab.chaos.schedule import Planned
from lab.chaos.terms import LEASE
from lab.chaos.watch import Watch


class ServerFaults:
    """What is done to a server, one thing at a time; each returns whether it could be done now.

    Args:
        cluster: the database.
        broker: the broker.
        places: the processes, which are led to another server.
        book: where it is written down.
        watch: asked for the database's clock afterwards.
    """

    def __init__(
        self, cluster: Cluster, broker: Broker, places: Sequence[Place], book: Book, watch: Watch
    ) -> None:
        self._cluster, self._broker, self._places = cluster, broker, places
        self._book, self._watch = book, watch
        self._server_busy = self._broker_busy = False

    def server_kill(self, planned: Planned) -> bool:
        return self._stop_server("server_kill", planned, self._cluster.primary.kill)

    def server_immediate(self, planned: Planned) -> bool:
        return self._stop_server("server_immediate", planned, lambda: self._cluster.primary.stop("immediate"))

    def server_restart(self, planned: Planned) -> bool:
        return self._stop_server("server_restart", planned, lambda: self._cluster.primary.stop("fast"))

    def _stop_server(self, name: str, planned: Planned, stop: Callable[[], None]) -> bool:
        if self._server_busy:
            return False
        fault_id = self._begin_server(name)
        stop()

        def start() -> None:
            self._cluster.primary.start()
            self._end_server(fault_id)

        self._book.later(planned.size**2 * LEASE, start)
        return True

    def disk_full(self, planned: Planned) -> bool:
        if self._server_busy:
            return False
        fault_id = self._begin_server("disk_full")
        self._cluster.fill_disk()

        def empty() -> None:
            self._cluster.empty_disk()
            self._cluster.primary.start()
            self._end_server(fault_id)

        self._book.later(0.5 + planned.size * 2, empty)
        return True

    def read_only(self, planned: Planned) -> bool:
        if self._server_busy:
            return False
        fault_id = self._begin_server("read_only")
        self._cluster.reload("SET default_transaction_read_only = on")

        def reset() -> None:
            self._cluster.reload("RESET default_transaction_read_only")
            self._end_server(fault_id)

        self._book.later(0.3 + planned.size * 1.5, reset)
        return True

    def standby_instead(self, planned: Planned) -> bool:
        """Lead everybody to the standby, which takes no writes."""
        standby = self._cluster.standby
        if self._server_busy or standby is None:
            return False
        fault_id = self._begin_server("read_only", detail="connected to the standby")
        self._lead_to(standby.url)

        def back() -> None:
            self._lead_to(self._cluster.primary.url)
            self._end_server(fault_id)

        self._book.later(0.3 + planned.size * 1.5, back)
        return True

    def failover_sync(self, planned: Planned) -> bool:
        if self._server_busy or self._cluster.standby is None:
            return False
        fault_id = self._begin_server("failover_sync")
        self._cluster.await_streaming()
        self._promote(fault_id)
        return True

    def failover_lossy(self, planned: Planned) -> bool:
        if self._server_busy or self._cluster.standby is None:
            return False
        fault_id = self._begin_server("failover_lossy")
        self._cluster.detach_standby()
        # From here on commits are lost.
        self._book.later(0.2 + planned.size, lambda: self._promote(fault_id))
        return True

    def _promote(self, fault_id: str) -> None:
        self._cluster.promote()
        self._lead_to(self._cluster.primary.url)
        self._end_server(fault_id)
        self._cluster.add_standby()

    def _lead_to(self, url: str) -> None:
        for place in self._places:
            place.database.retarget(url)

    def _begin_server(self, name: str, **more: str) -> str:
        self._server_busy = True
        return self._book.begin(name, "server", **more)

    def _end_server(self, fault_id: str) -> None:
        self._server_busy = False
        self._book.end(fault_id)
        self._watch.ask_clock()

    def receiver_down(self, planned: Planned) -> bool:
        stop = self._broker.server.kill if planned.aim < 0.5 else self._broker.server.stop
        return self._without_broker(planned, stop, self._broker.restart)

    def receiver_frozen(self, planned: Planned) -> bool:
        return self._without_broker(planned, self._broker.server.pause, self._broker.server.resume)

    def _without_broker(self, planned: Planned, stop: Callable[[], None], go_on: Callable[[], None]) -> bool:
        if self._broker_busy:
            return False
        fault_id = self._book.begin("receiver_down", "receiver", detail=planned.kind)
        self._broker_busy = True
        stop()

        def end() -> None:
            go_on()
            self._broker_busy = False
            self._book.end(fault_id)

        self._book.later(0.2 + planned.size**2 * 3, end)
        return True
