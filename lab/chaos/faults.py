"""The faults: each kind of the plan, and who does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.chaos.book import Book
from lab.chaos.process_faults import ProcessFaults
from lab.chaos.schedule import Planned
from lab.chaos.server_faults import ServerFaults


class Faults:
    """Applies planned faults.

    Args:
        processes: does those of processes and paths.
        servers: does those of servers.
        book: counts them.
    """

    def __init__(self, processes: ProcessFaults, servers: ServerFaults, book: Book) -> None:
        self._book = book
        self._of_kind: Mapping[str, Callable[[Planned], bool]] = {
            "sigkill": processes.sigkill,
            "sigterm": processes.sigterm,
            "sigstop": processes.sigstop,
            "clock_skew": processes.clock_skew,
            "cut": processes.cut,
            "backend_terminated": processes.backend_terminated,
            "lost_answer": processes.lost_answer,
            "lost_commit_answer": processes.lost_commit_answer,
            "lost_commit": processes.lost_commit,
            "black_hole": processes.black_hole,
            "receiver_cut": processes.receiver_cut,
            "receiver_lost_ack": processes.receiver_lost_ack,
            "server_kill": servers.server_kill,
            "server_immediate": servers.server_immediate,
            "server_restart": servers.server_restart,
            "disk_full": servers.disk_full,
            "read_only": servers.read_only,
            "standby_instead": servers.standby_instead,
            "failover_sync": servers.failover_sync,
            "failover_lossy": servers.failover_lossy,
            "receiver_down": servers.receiver_down,
            "receiver_frozen": servers.receiver_frozen,
        }

    def apply(self, planned: Planned) -> None:
        """Do it, or count it as missed where there is nobody to do it to."""
        counted = self._book.applied if self._of_kind[planned.kind](planned) else self._book.missed
        counted[planned.kind] += 1
