"""The places of a run: each has one process at a time, its proxies, and a name that its successors keep."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from fencepost.testing.fault_proxy import FaultProxy
from lab.chaos import terms
from lab.chaos.proxy import CommitProxy
from lab.chaos.terms import ROOT, Told
from lab.checker.recording import Recorder

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
KILLED, POISONED, UNREACHABLE = -signal.SIGKILL, 9, 3


@dataclass(frozen=True)
class Kind:
    """What runs in a place.

    Args:
        role: as the history calls it.
        command: its arguments behind the interpreter.
        may_be_killed: its successor goes on where it ended.
    """

    role: str
    command: tuple[str, ...]
    may_be_killed: bool = True


def _seconds(value: float) -> str:
    return f"{value * 1000:g}ms"


_DISPATCH = (
    *("dispatch", "--publisher", "lab.chaos.publisher:publisher", "--log-level", "warning"),
    *("--lease", _seconds(terms.LEASE), "--publish-timeout", _seconds(terms.PUBLISH_TIMEOUT)),
    *("--poll-interval", _seconds(terms.POLL), "--grace", _seconds(terms.GRACE)),
    *("--max-attempts", str(terms.MAX_ATTEMPTS), "--batch", "20", "--concurrency", "20"),
    *("--backoff-base", _seconds(terms.BACKOFF_BASE), "--backoff-cap", _seconds(terms.BACKOFF_CAP)),
    *("--breaker-cap", _seconds(terms.BREAKER_CAP)),
)
_WORK = (
    *("work", "lab.chaos.tasks:jobs", "--log-level", "warning", "--concurrency", "6"),
    *("--poll-interval", _seconds(terms.POLL), "--grace", _seconds(terms.GRACE)),
)

DISPATCHER = Kind("worker", ("-m", "fencepost", *_DISPATCH))
SABOTAGED = Kind("worker", ("-m", "lab.chaos.sabotaged", *_DISPATCH))
JOB_WORKER = Kind("job_worker", ("-m", "fencepost", *_WORK))
PRODUCER = Kind("producer", ("-m", "lab.chaos.producer"), may_be_killed=True)
CONSUMER = Kind("consumer", ("-m", "lab.chaos.consumer"))
OPERATOR = Kind("operator", ("-m", "lab.chaos.operating"))


class Place:
    """One place.

    Args:
        name: of the place.
        kind: what runs there.
        folder: of the run.
        seed: of the run.
        store: the database's URL; it leads there through a proxy of the place's own.
        broker: the broker's port; so does this.
        recorder: the conductor's.
        skewed: its processes have a clock that can be set.
    """

    def __init__(
        self, name: str, kind: Kind, folder: Path, seed: int, store: str, broker: int, recorder: Recorder,
        *, skewed: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.kind = name, kind
        self._folder, self._seed, self._recorder = folder, seed, recorder
        self._store = store
        self.database = CommitProxy("127.0.0.1", 0)
        self.broker = FaultProxy("127.0.0.1", broker)
        self.database.start()
        self.database.retarget(store)
        self.broker.start()
        self.skew = folder / f"clock-{name}" if skewed else None
        self.process: subprocess.Popen[bytes] | None = None
        self.process_name = ""
        self.frozen = False
        self.told_to_end: float | None = None
        """When it was sent SIGTERM, by the monotonic clock."""
        self._ended_at: dict[int, float] = {}
        """When processes ended, by pid: whoever looks may be at something that takes long, such as a failover."""
        self.starved = 0.0
        """Seconds since then in which it could have run and the kernel gave it no processor."""
        self._starved_before = 0.0
        self._looked_at, self._waited = 0, 0.0
        self._starts, self._last_pid = 0, 0

    @property
    def alive(self) -> bool:
        """Whether its process runs, as far as the conductor has seen."""
        return self.process is not None

    @property
    def at_work(self) -> bool:
        """Whether its process runs, is not frozen, and has not been told to end."""
        return self.alive and not self.frozen and self.told_to_end is None

    def start(self) -> None:
        """Start its next process."""
        self._starts += 1
        self.process_name = f"{self.name}-{self._starts}"
        told = Told(
            folder=self._folder,
            process=self.process_name,
            owner=self.name,
            seed=f"{self._seed} {self.process_name}",
            store=self.database.url(self._store),
            broker=f"nats://127.0.0.1:{self.broker.port}",
            batches=self.name.endswith("2"),
            extra=self._clock(),
        )
        owner = ("--owner", self.name) if self.kind.role in ("worker", "job_worker") else ()
        with (self._folder / "logs" / f"{self.process_name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.kind.command, *owner],
                cwd=ROOT,
                env=told.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        threading.Thread(target=self._note_end, args=(self.process.pid,), daemon=True).start()
        self.frozen, self.told_to_end = False, None
        self._looked_at, self._waited = time.monotonic_ns(), 0.0
        about = {"owner": self.name} if owner else {}
        self._recorder.write("start", of=self.process_name, pid=self.process.pid, role=self.kind.role, **about)

    def _note_end(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):  # whoever looked has seen it first
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self._ended_at[pid] = time.monotonic()

    @property
    def took_to_end(self) -> float | None:
        """Seconds from SIGTERM to the end of the process that was looked at last; None where it was not told to.

        Without those in which the kernel gave it no processor: other work of the machine is not its fault.
        """
        if self.told_to_end is None:
            return None
        return self._ended_at.pop(self._last_pid, time.monotonic()) - self.told_to_end - self.starved

    def look(self) -> int | None:
        """Return the exit code if its process has ended, and write it down."""
        if self.process is not None and self.told_to_end is not None:
            self.starved = max(self.starved, _starved(self.process.pid) - self._starved_before)
        self._say_if_starved()
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self._recorder.write("exit", of=self.process_name, pid=self.process.pid, code=code)
        self._last_pid = self.process.pid
        self.process = None
        return code

    def _say_if_starved(self) -> None:
        """Tell where the machine kept its process waiting for a good part of the last second."""
        now = time.monotonic_ns()
        if self.process is None or now - self._looked_at < 1_000_000_000:
            return
        waited = _starved(self.process.pid)
        if waited - self._waited >= LEAST_STARVED:
            seconds = round(waited - self._waited, 3)
            self._recorder.write("starved", of=self.process_name, since=self._looked_at, seconds=seconds)
        self._looked_at, self._waited = now, waited

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.process is not None  # noqa: S101 - whoever aims at it has looked
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.frozen = True
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on, if it is still there."""
        self.frozen = False
        if self.process is not None:
            self.send(signal.SIGCONT)

    def tell_to_end(self) -> None:
        assert self.process is not None  # noqa: S101 - as above
        self.told_to_end = time.monotonic()
        self.starved, self._starved_before = 0.0, _starved(self.process.pid)
        self.send(signal.SIGTERM)

    def set_clock(self, skew: str) -> None:
        """Set the clock of its processes, such as ``+1h``."""
        assert self.skew is not None  # noqa: S101 - whoever sets it has looked
        draft = self.skew.with_suffix(".new")
        draft.write_text(skew + "\n", encoding="ascii")
        draft.rename(self.skew)

    def log(self) -> str:
        """Return the end of what its last process wrote."""
        return (self._folder / "logs" / f"{self.process_name}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.look()
        self.database.close()
        self.broker.close()

    def _clock(self) -> dict[str, str]:
        if self.skew is None:
            return {}
        if not self.skew.exists():
            self.set_clock("+0")
        return {
            "LD_PRELOAD": os.fspath(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": os.fspath(self.skew),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


LEAST_STARVED = 0.2
"""Seconds without a processor, of about one, that are worth a line."""


def _starved(pid: int) -> float:
    """Return the seconds that a process waited for a processor, as Linux counts them; 0 where nobody counts."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
