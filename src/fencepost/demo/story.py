"""The demonstration from its beginning to its end, in the order in which it happens."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
from rich.console import Console

from fencepost.demo.board import Board, WorkerView
from fencepost.demo.faults import Faults, HeldRow
from fencepost.demo.gauges import read_counters, watching
from fencepost.demo.place import TEMPORARY, signals_unwind, stage
from fencepost.demo.programs import Deadline, Program
from fencepost.demo.screen import Screen, result_object
from fencepost.demo.shop import Shop
from fencepost.demo.terms import FROZEN, KILLED, LEASE, POLL, PUBLISH_TIMEOUT, SPARED, WORKERS
from fencepost.demo.verdict import CAUSES, Figures, Line, judge, repeats
from fencepost.errors import ConfigError, FencepostError

Connection = psycopg.Connection[Any]

REPEATS_SHOWN = 8

WARM_UP = 50
"""Orders delivered before anything goes wrong, so that one sees what usual looks like."""

_DONE = "SELECT count(*) FROM fencepost_demo.outbox WHERE status = 'done'"

_OPEN = "SELECT count(*) FROM fencepost_demo.outbox WHERE status NOT IN ('done', 'dead')"

_REPORT = """
    INSERT INTO fencepost_demo.worker_report (worker, claimed, delivered, lost_leases) VALUES (%s, %s, %s, %s)
"""

_QUERIES = (
    "SELECT status, outcome, count(*) FROM fencepost_demo.outbox GROUP BY 1, 2;",
    "SELECT id, lease_owner, lease_version, attempts FROM fencepost_demo.outbox",
    "  WHERE reclaim_count > 0;",
    "SELECT message_id, array_agg(worker || ' token ' || token ORDER BY id)",
    "  FROM fencepost_demo.arrival GROUP BY 1 HAVING count(*) > 1;",
)

_NEXT = (
    "fencepost demo race                    # what goes wrong without a lease",
    "fencepost init --store postgresql://…  # the outbox, in your own database",
    "fencepost dispatch --help              # what publishes from it",
)


def run(address: str, *, console: Console, as_json: bool) -> int:
    """See `fencepost.demo.run_demo`."""
    if os.name != "posix":
        raise ConfigError("the demo freezes a process, which only Linux and macOS can do: run it there")
    with signals_unwind():
        return _Story(Screen(console, quiet=as_json)).tell(address, as_json=as_json)


class _Story:
    """One run."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._board = Board()

    def tell(self, address: str, *, as_json: bool) -> int:
        self._screen.title("fencepost demo: committed events, and workers that are killed and frozen")
        if address == TEMPORARY:
            self._say("starting a PostgreSQL server in a temporary directory")
        with stage(address) as url, psycopg.connect(url, autocommit=True) as connection:
            version = connection.info.parameter_status("server_version")
            self._say(f"PostgreSQL {version} is up; the demo has made its own schema, fencepost_demo")
            self._play(url, connection)
            lines, repeated = judge(connection), repeats(connection)
        if as_json:
            self._screen.json(result_object("outbox", self._board.seconds, lines, repeats=repeated))
        else:
            self._conclude(address, lines, repeated)
        return 0 if all(line.holds for line in lines) else 1

    def _say(self, text: str, style: str = "") -> None:
        self._screen.say(text, seconds=self._board.seconds, style=style)

    # --- what happens ------------------------------------------------------------------------------------

    def _play(self, url: str, connection: Connection) -> None:
        with ExitStack() as stack:
            receiver = stack.enter_context(Program("receiver", "receiver", {"url": url}))
            port = receiver.expect("ready")["port"]
            terms = {"url": url, "port": port}
            workers = {name: stack.enter_context(Program("worker", name, terms)) for name in WORKERS}
            for name, worker in workers.items():
                worker.expect("ready")
                self._board.workers[name] = WorkerView(worker.pid)
            self._say(
                f"a receiver and three workers run, each a process: lease {LEASE:g} s, "
                f"publish time-out {PUBLISH_TIMEOUT:g} s, poll every {POLL:g} s"
            )
            stack.enter_context(self._screen.live(self._board.render))
            stack.enter_context(watching(url, self._board, list(workers.values())))
            try:
                with Shop(url) as shop:
                    self._trade(shop, connection, receiver, workers)
                self._finish(connection, workers)
            except FencepostError as error:
                raise FencepostError("\n".join([str(error), *_logged_by(workers.values())])) from error

    def _trade(self, shop: Shop, connection: Connection, receiver: Program, workers: dict[str, Program]) -> None:
        self._say("the shop is open: each order commits together with its event, or neither does")

        def check() -> None:
            shop.check()
            workers[SPARED].check()

        _wait_until("the first orders were delivered", connection, _DONE, lambda count: count >= WARM_UP, check)
        faults = Faults(connection, receiver, check)
        self._kill_one(faults, workers[KILLED])
        self._freeze_one(faults, workers[FROZEN])

    def _finish(self, connection: Connection, workers: dict[str, Program]) -> None:
        self._say("the shop is closed; the workers finish what is left")
        alive = [worker for name, worker in workers.items() if name != KILLED]
        checks = [worker.check for worker in alive]
        _wait_until("everything was delivered", connection, _OPEN, lambda count: count == 0, *checks)
        self._drain(connection, alive)

    def _kill_one(self, faults: Faults, worker: Program) -> None:
        held = faults.kill(worker)
        self._board.workers[worker.name].state = "killed"
        self._say(
            f"SIGKILL for {worker.name}, in the middle of publishing {_messages(held)}: the receiver has acted, "
            "but its answer will never be read",
            "red",
        )
        others = faults.wait_until_taken_over(worker)
        self._say(f"the leases of {worker.name} ran out; its messages were taken over by {others}", "green")

    def _freeze_one(self, faults: Faults, worker: Program) -> None:
        held = faults.freeze(worker)
        self._board.workers[worker.name].state = "frozen"
        self._say(f"SIGSTOP for {worker.name}, in the middle of publishing {_messages(held)}", "cyan")
        others = faults.wait_until_taken_over(worker)
        self._say(f"the leases of {worker.name} ran out; its messages were finished by {others}", "green")
        self._board.workers[worker.name].state = "resumed"
        refused = faults.thaw(worker)
        self._say(
            f"SIGCONT for {worker.name}: it tried to write its results, too late: {refused} refused", "green"
        )
        logged = [
            report["text"] for report in worker.take_reports("log") if report["logger"] == "fencepost.finalize"
        ]
        for text in logged[:1]:
            self._say(f"{worker.name} logged, among others: {text}", "dim")
        faults.wait_until_at_work(worker)
        self._say(f"{worker.name} is back at work, with new leases", "green")

    def _drain(self, connection: Connection, alive: list[Program]) -> None:
        """Let the workers drain, and write down what they counted."""
        for worker in alive:
            worker.terminate()
        for worker in alive:
            if worker.exit_status() != 0:
                raise FencepostError(f"{worker.name} did not drain at SIGTERM")
            self._board.workers[worker.name].state = "ended"
        read_counters(self._board, alive)
        for name, view in self._board.workers.items():
            connection.execute(_REPORT, [name, view.claimed, view.delivered, view.lost_leases])

    # --- what came of it ---------------------------------------------------------------------------------

    def _conclude(self, address: str, lines: list[Line], repeated: list[Figures]) -> None:
        self._screen.title("The verdict, from the tables")
        self._screen.verdict(lines, self._board.seconds)
        self._show_repeats(repeated)
        if address == TEMPORARY:
            self._screen.commands(
                "Its server is gone, tables and all. To keep them, name a database of yours:",
                ["fencepost demo --store postgresql://…"],
            )
        else:
            self._screen.commands(
                "The tables are still there:", ["fencepost status --store … --schema fencepost_demo"]
            )
        self._screen.commands("Look for yourself, in psql:", _QUERIES)
        self._screen.commands("Next:", _NEXT)

    def _show_repeats(self, repeated: list[Figures]) -> None:
        rows = [
            [
                str(row["message_id"])[:8],
                f"{row['worker_before']}, token {row['token_before']}",
                f"{row['worker']}, token {row['token']}",
                CAUSES[row["cause"]],
            ]
            for row in repeated[:REPEATS_SHOWN]
        ]
        if len(repeated) > REPEATS_SHOWN:
            rows.append([f"and {len(repeated) - REPEATS_SHOWN} more", "", "", ""])
        self._screen.table(
            "What the receiver got twice: the same message id, a higher token",
            ["message", "sent by", "and again by", "since"],
            rows,
        )


def _wait_until(
    what: str,
    connection: Connection,
    query: LiteralString,
    satisfied: Callable[[int], bool],
    *checks: Callable[[], None],
) -> None:
    deadline = Deadline(what)
    while (row := connection.execute(query).fetchone()) and not satisfied(row[0]):
        deadline.check()
        for check in checks:
            check()
        time.sleep(0.05)


def _logged_by(workers: Iterable[Program]) -> list[str]:
    """Return the last warnings of the workers, which may tell why something went wrong."""
    logged = []
    for worker in workers:
        warnings = [report for report in worker.take_reports("log") if report["level"] >= logging.WARNING]
        logged += [f"{worker.name}: {report['text']}" for report in warnings[-3:]]
    return logged


def _messages(held: list[HeldRow]) -> str:
    ids = ", ".join(str(row.outbox_id) for row in held)
    return f"message {ids}" if len(held) == 1 else f"messages {ids}"
