"""Plays scripts in processes of their own, several at once: most of their time they wait for a lease to end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import operator
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psycopg
from tests.postgres import fresh_database

from fencepost import Outbox
from fencepost.embedded import PostgresServer
from lab.crashes.runtime import PATIENCE, Cut, Script, cuts_of, play
from lab.journal import Journal

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["lab.crashes.scripts"])  # once for all of them
LANES = 6
"""Scripts at once, each in a database of its own."""

UNDISTURBED = 3
"""Runs that are not cut: what each of them sends is. How often work is looked for in vain depends on the time."""
TRIES = 5
"""Runs that may pass by their cut: what each undisturbed run sends, this one may have sent once less."""
LEASE = timedelta(seconds=5)
"""Of which all time limits of a worker are parts: long enough for a machine that does other things."""

Make = Callable[[str, Path, timedelta], Script]


@dataclass(frozen=True)
class Lane:
    """Where a script is played: a database with the tables, and a file for what outlives its process."""

    url: str
    notes: Path
    lease: timedelta = LEASE


@dataclass
class Played:
    """What came of a script."""

    points: int = 0
    cut: int = 0
    not_reached: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What a run came to: what it sent, whether it was cut, and what did not hold."""

    sent: Counter[tuple[str, str]]
    has_cut: bool
    problems: list[str]


@contextlib.contextmanager
def lanes(server: PostgresServer, folder: Path, count: int = LANES) -> Iterator[list[Lane]]:
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            lane = Lane(stack.enter_context(fresh_database(server)), folder / f"notes-{number}")
            with psycopg.connect(lane.url) as connection:
                Outbox().migrate(connection)
            found.append(lane)
        yield found


class Trial:
    """A script, cut once. Where that kills its process, another one goes on."""

    def __init__(self, make: Make, lane: Lane, cut: Cut | None) -> None:
        self._make, self.lane, self.cut = make, lane, cut
        self.answer: Answer | None = None
        self._start(goes_on=False)

    def _start(self, *, goes_on: bool) -> None:
        self._goes_on = goes_on
        self._ours, theirs = FORK.Pipe(duplex=False)
        cut = None if goes_on else self.cut
        self.process = FORK.Process(target=_in_child, args=(self._make, self.lane, cut, goes_on, theirs))
        self.process.start()
        theirs.close()
        self._ends = time.monotonic() + 2 * PATIENCE

    def is_over(self) -> bool:
        """Look after the process; tell whether `answer` is there."""
        if time.monotonic() > self._ends:
            self.process.terminate()
        if self.process.is_alive():
            return False
        self.process.join()
        found = self._received()
        is_killed = self.process.exitcode == -signal.SIGKILL and self.cut is not None and self.cut.kills
        if found is None and is_killed and not self._goes_on:
            self._start(goes_on=True)
            return False
        if found is None:
            found = Answer(Counter(), False, [f"the process ended with {self.process.exitcode}"])
        self.answer = Answer(found.sent, found.has_cut or self._goes_on, found.problems)
        return True

    def _received(self) -> Answer | None:
        with contextlib.closing(self._ours), contextlib.suppress(EOFError):
            found: Answer = self._ours.recv()
            return found
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _in_child(make: Make, lane: Lane, cut: Cut | None, goes_on: bool, answer: Connection) -> None:
    logging.getLogger("fencepost").setLevel(logging.CRITICAL)  # what it says of a cut is what is expected
    with contextlib.closing(make(lane.url, lane.notes, lane.lease)) as script:
        try:
            saboteur, problems = asyncio.run(play(lane.url, script, cut, goes_on=goes_on))
            found = Answer(saboteur.sent, saboteur.has_cut, problems)
        except Exception as error:  # noqa: BLE001 - what fails is what did not hold, and the others go on
            found = Answer(Counter(), False, [f"{type(error).__name__}: {error}"])
    answer.send(found)


def tried(make: Make, places: Sequence[Lane], cuts: Sequence[Cut | None]) -> Iterator[tuple[Cut | None, Answer]]:
    """Play a script once for each cut, on all lanes at once; yield what came of each."""
    waiting, free, running = list(cuts), list(places), list[Trial]()
    try:
        while waiting or running:
            while waiting and free:
                running.append(Trial(make, free.pop(), waiting.pop(0)))
            wait([each.process.sentinel for each in running], timeout=1)
            for each in [each for each in running if each.is_over()]:
                running.remove(each)
                free.append(each.lane)
                assert each.answer is not None  # noqa: S101 - for the type checker: it is over
                yield each.cut, each.answer
    finally:
        for each in running:
            each.end()


def played(
    make: Make,
    name: str,
    places: Sequence[Lane],
    journal: Journal,
    *,
    every: int = 1,
    offset: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Played:
    """Play a script undisturbed, and once for every nth boundary of it that the journal does not have yet."""
    counted = [answer for _, answer in tried(make, places, [None] * UNDISTURBED)]
    cuts = cuts_of(functools.reduce(operator.and_, [each.sent for each in counted]))
    result = Played(
        len(cuts), problems=[f"{name}, undisturbed: {problem}" for each in counted for problem in each.problems]
    )
    known = {line["point"]: line for line in journal.found if line["part"] == "runtime"}
    chosen = cuts[offset % every :: every]
    for cut in chosen:
        if (line := known.get(f"{name}: {cut}")) is not None:
            _note(result, line, tell)
    for made, answer in reached(make, places, [each for each in chosen if f"{name}: {each}" not in known]):
        line = {
            "part": "runtime",
            "point": f"{name}: {made}",
            "reached": answer.has_cut,
            "problems": answer.problems,
        }
        journal.add(line)
        _note(result, line, tell)
    return result


def reached(make: Make, places: Sequence[Lane], cuts: Sequence[Cut]) -> Iterator[tuple[Cut, Answer]]:
    """Play a script once for each cut, and again where it passed by the cut; yield what came of each."""
    for tries in range(1, TRIES + 1):
        passed_by = []
        for cut, answer in tried(make, places, cuts):
            assert cut is not None  # noqa: S101 - for the type checker: each was asked for
            if answer.has_cut or answer.problems or tries == TRIES:
                yield cut, answer
            else:
                passed_by.append(cut)
        cuts = passed_by


def _note(result: Played, line: dict[str, Any], tell: Callable[[str], None]) -> None:
    if line["reached"]:
        result.cut += 1
    else:
        result.not_reached.append(line["point"])
    tell(f"{line['point']}{'' if line['reached'] else ' (not reached)'}")
    for problem in line["problems"]:
        result.problems.append(f"{line['point']}: {problem}")
        tell(f"  FAILED {problem}")
