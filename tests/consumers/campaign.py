"""Kills each example again and again, from outside and at its commits, and compares effects with messages.

``python -m tests.consumers.campaign --seed 7 redis_consumer kafka_consumer`` starts servers of its own; without
names it takes all examples, about a minute each. `make consumers` does the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.consumers.places import PLACES, Place, Site
from tests.consumers.test_examples import consuming, dispatching, enqueued, fresh_invoices, made, said
from tests.postgres import pg18_bin_dir, running_server
from tests.publishers.rabbitmq_server import RabbitServer
from tests.store.databases import Migrated, migrated_database

MESSAGES, KILLS = 300, 30
AT_ONCE = 30
"""Messages that wait while a consumer is killed."""
PATIENCE = 120.0


class Campaign:
    """One example at its broker."""

    def __init__(self, example: str, db: Migrated, seed: int) -> None:
        self._example, self._db = example, db
        self._random = random.Random(f"{example} {seed}")  # noqa: S311 - a campaign that can be repeated
        self._wanted: list[str] = []
        self.kills: Counter[str] = Counter()

    async def run(self, directory: Path, stack: ExitStack) -> bool:
        """Return whether there is one effect for each message."""

        @cache
        def rabbit() -> RabbitServer:
            return stack.enter_context(RabbitServer(directory))

        self._log = directory / "example.log"
        site = Site(directory, self._db.url, rabbit)
        async with PLACES[self._example](site) as place, dispatching(self._db.url, place):
            for _ in range(KILLS):
                self._enqueue(AT_ONCE - (len(self._wanted) - len(made(self._db))))
                await self._kill(place)
            self._enqueue(MESSAGES)
            await self._finish(place)
        return Counter(made(self._db)) == Counter(self._wanted)

    def _enqueue(self, count: int) -> None:
        self._wanted += enqueued(self._db, max(0, min(count, MESSAGES - len(self._wanted))))

    async def _kill(self, place: Place) -> None:
        """Kill a consumer some effects after its start, unless it ended at a commit before that."""
        goal = len(made(self._db)) + self._random.randint(1, MESSAGES // KILLS - 2)
        moment = self._random.choice(["random", "never"])
        async with consuming(self._example, moment, self._db.url, place, self._log) as process:
            async with asyncio.timeout(PATIENCE):
                while process.returncode is None and len(made(self._db)) < goal:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0)  # each look at the database takes its time
            await asyncio.sleep(self._random.uniform(0, 0.005))  # anywhere in the next message
            self.kills["from outside" if process.returncode is None else "at a commit"] += 1

    async def _finish(self, place: Place) -> None:
        async with consuming(self._example, "never", self._db.url, place, self._log) as process:
            async with asyncio.timeout(PATIENCE):
                while len(made(self._db)) < MESSAGES or await place.left(MESSAGES) > 0:
                    assert process.returncode is None, said(self._log)
                    await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))  # noqa: S311 - shown, to repeat it
    parser.add_argument("examples", nargs="*", default=list(PLACES))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    is_good = True
    with running_server(pg18_bin_dir()) as server, migrated_database(server) as db:
        for example in options.examples:
            fresh_invoices(db)
            campaign = Campaign(example, db, options.seed)
            with tempfile.TemporaryDirectory(prefix="fencepost-consumers-") as directory, ExitStack() as stack:
                once = asyncio.run(campaign.run(Path(directory), stack))
            effects = len(made(db))
            print(f"{example}: {MESSAGES} messages, {effects} effects, killed {dict(campaign.kills)}", flush=True)
            is_good = is_good and once
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
