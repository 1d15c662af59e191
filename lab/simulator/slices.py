"""A long campaign in slices: each on whichever process is free, its figures in a file as soon as it is done."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path

from lab.ending import Refused
from lab.journal import Journal
from lab.simulator.campaign import Totals, explore
from lab.simulator.kinds import MAKERS

SLICE = 200
"""Schedules of a slice: a few seconds' work, which an interruption may cost."""


def slices(first: int, schedules: int | None) -> Iterator[range]:
    """Cut so many seeds into slices, from the first one on; None for without end."""
    starts = itertools.count(first, SLICE) if schedules is None else range(first, first + schedules, SLICE)
    for start in starts:
        yield range(start, start + SLICE if schedules is None else min(start + SLICE, first + schedules))


class Book:
    """The figures of every slice, in a file that has a line for each; a later run goes on behind them.

    Args:
        path: of the file.
        of: what is simulated.
        first: the first seed that is asked for.
        schedules: how many are asked for from there on; None: as many as come.

    Raises:
        Refused: the file has slices of these seeds that were cut elsewhere: some would count twice.
    """

    def __init__(self, path: Path | None, of: str, first: int, schedules: int | None) -> None:
        self._journal, self._of = Journal(path, "of", "first_seed", "totals"), of
        lines = (each for each in self._journal.found if each["of"] == of)
        end = float("inf") if schedules is None else first + schedules
        self._slices: dict[int, Totals] = {}
        for line in lines:
            start, totals = line["first_seed"], Totals.read(line["totals"])
            if start >= end or start + totals.schedules <= first:
                continue
            if (start - first) % SLICE or start + totals.schedules > end:
                raise Refused(
                    f"{path} has the schedules from seed {start} on, which are some of those asked for:"
                    f" ask for them as before, or give another file with --into"
                )
            self._slices[start] = totals

    def has(self, seeds: range) -> bool:
        """Tell whether a slice was done to its end, and nothing failed."""
        found = self._slices.get(seeds.start)
        return found is not None and found.schedules >= len(seeds) and not found.failed

    def add(self, seeds: range, totals: Totals) -> None:
        self._slices[seeds.start] = totals
        self._journal.add({"of": self._of, "first_seed": seeds.start, "totals": totals.as_dict()})

    def total(self) -> Totals:
        """Add up all slices of what was asked for, those of earlier runs included."""
        total = Totals()
        for each in self._slices.values():
            total += each
        return total


def explored(wanted: Iterable[range], of: str, *, cores: int, keeps_going: bool) -> Iterator[tuple[range, Totals]]:
    """Yield slices with what they came to, as they are done; a slice ends at its first failure, or keeps going."""
    if cores == 1:
        for seeds in wanted:
            yield seeds, _explore(seeds, of, keeps_going)
        return
    left = iter(wanted)
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        running: dict[Future[Totals], range] = {}
        while True:
            for seeds in itertools.islice(left, cores - len(running)):
                running[pool.submit(_explore, seeds, of, keeps_going)] = seeds
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                yield running.pop(each), each.result()


def _end_with_parent() -> None:
    """Have this worker end where the command is killed: it would wait for its next slice for ever."""
    command = parent_process()
    assert command is not None  # noqa: S101 - for the type checker: a worker has one

    def end() -> None:
        command.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _explore(seeds: range, of: str, keeps_going: bool) -> Totals:
    return explore(seeds, is_enough=lambda totals: bool(totals.failed) and not keeps_going, make=MAKERS[of])
