"""``inbox``: consumers and what they keep, and a purge in committed steps that forgets nothing too early."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from fencepost import DispatcherSettings, Inbox, Outbox
from fencepost.cli.inbox import longest
from fencepost.core.queue import QueueSettings
from fencepost.store import inbox as operations
from tests.cli.program import Program, Result

Call = Callable[..., Result]


def take_in(url: str, consumer: str, count: int, days: float = 0.0, keys: int = 0) -> None:
    """Commit entries of a consumer that are so many days old."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO outbox_inbox (consumer, message_id, accepted_at)"
            " SELECT %s, %s || '-' || n, now() - %s * interval '1 day' FROM generate_series(1, %s) AS n",
            [consumer, str(days), days, count],
        )
        for key in range(keys):
            assert Inbox(consumer).accept_in_sequence(connection, str(key), 1)


def left(url: str, consumer: str = "billing") -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM outbox_inbox WHERE consumer = %s", [consumer]).fetchone()
    assert row is not None
    return int(row[0])


def test_lists_consumers_with_what_they_keep(call: Call, store: str) -> None:
    assert call("inbox", "list", store=store) == Result(0, "", "no consumer has taken anything in\n")
    take_in(store, "billing", 3, days=30)
    take_in(store, "billing", 1, days=2)
    take_in(store, "Billing", 1)
    take_in(store, "counting", 0, keys=4)
    result = call("inbox", "list", store=store)
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()] == [
        ["consumer", "entries", "oldest", "newest", "keys"],
        ["Billing", "1", "0s", "0s", "0"],
        ["billing", "4", "30d", "2d", "0"],
        ["counting", "0", "-", "-", "4"],
    ]
    found = call("inbox", "list", "--json", store=store).json
    assert found["after"] is None
    assert [each["consumer"] for each in found["consumers"]] == ["Billing", "billing", "counting"]
    billing, counting = found["consumers"][1:]
    assert billing["oldest_age_seconds"] == pytest.approx(30 * 86_400, abs=60)
    assert billing["newest_age_seconds"] == pytest.approx(2 * 86_400, abs=60)
    assert (billing["entries"], billing["entries_are_capped"], billing["keys"]) == (4, False, 0)
    assert (counting["entries"], counting["oldest_age_seconds"], counting["keys"]) == (0, None, 4)


def test_lists_page_by_page(call: Call, store: str) -> None:
    for name in ("a", "b", "c", "d"):
        take_in(store, name, 1)
    first = call("inbox", "list", "--limit", "2", "--json", store=store).json
    assert ([each["consumer"] for each in first["consumers"]], first["after"]) == (["a", "b"], "b")
    second = call("inbox", "list", "--limit", "2", "--after", "b", store=store)
    assert [line.split()[0] for line in second.out.splitlines()[1:]] == ["c", "d"]
    assert second.err == ""
    assert call("inbox", "list", "--limit", "1", store=store).err == "there are more: --after a\n"


def test_counts_only_so_far(call: Call, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "COUNTED", 2)
    take_in(store, "billing", 3, keys=3)
    take_in(store, "stock", 2, keys=2)
    out = call("inbox", "list", store=store).out.splitlines()
    assert out[1].startswith("billing   more than 2  0s")
    assert out[1].endswith("more than 2")
    assert out[2].split() == ["stock", "2", "0s", "0s", "2"]
    (billing, stock) = call("inbox", "list", "--json", store=store).json["consumers"]
    assert (billing["entries"], billing["entries_are_capped"], billing["keys_are_capped"]) == (2, True, True)
    assert (stock["entries"], stock["entries_are_capped"], stock["keys_are_capped"]) == (2, False, False)


def test_forgets_old_entries_of_one_consumer(call: Call, store: str) -> None:
    take_in(store, "billing", 3, days=30, keys=1)
    take_in(store, "billing", 2, days=2)
    take_in(store, "stock", 1, days=30)
    result = call("inbox", "purge", "billing", "--older-than", "14d", store=store)
    assert result == Result(0, "forgot 3 entries of billing\n", "")
    assert (left(store), left(store, "stock")) == (2, 1)
    found = call("inbox", "purge", "stock", "--older-than", "14d", "--json", store=store).json
    assert (found["consumer"], found["forgotten"]) == ("stock", 1)
    assert found["horizon_seconds"] == DispatcherSettings().redelivery_horizon().total_seconds()
    assert (
        call("inbox", "purge", "nobody", "--older-than", "14d", store=store).out == "forgot 0 entries of nobody\n"
    )


def refused(call: Call, store: str, *options: str, older_than: str = "3d") -> str | None:
    """Return what is said where the age is refused, None where it is taken."""
    result = call("inbox", "purge", "billing", "--older-than", older_than, *options, store=store)
    if result.code == 0:
        return None
    assert (result.code, result.out) == (2, "")
    return result.err


def test_refuses_to_forget_what_can_come_again(
    call: Call, store: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in(store, "billing", 3, days=30)
    assert "--older-than 2d is too short: a message can come again for 2d1h14m" in (
        refused(call, store, older_than="2d") or ""
    )
    assert "can come again for 3d1h14m" in (refused(call, store, "--waiting", "2d") or "")
    assert "can come again for 9d1h14m" in (refused(call, store, "--broker", "7d") or "")
    folder.joinpath("fencepost.toml").write_text('max_attempts = 100\nbackoff_cap = "1h"\n')
    assert "can come again for 6d" in (refused(call, store) or "")
    folder.joinpath("fencepost.toml").unlink()
    monkeypatch.setenv("FENCEPOST_OUTAGE_BUDGET", "4d")
    assert "can come again for 5d" in (refused(call, store) or "")
    monkeypatch.delenv("FENCEPOST_OUTAGE_BUDGET")
    with psycopg.connect(store) as connection:
        Outbox().set_queue(connection, "slow", "ann", max_attempts=1_000)
    assert "can come again for 6d" in (refused(call, store) or "")
    assert left(store) == 3
    assert refused(call, store, older_than="10d") is None
    assert left(store) == 0


def test_the_longest_terms_are_those_of_any_queue() -> None:
    hour = timedelta(hours=1)
    settings = DispatcherSettings(owner="w")
    queues = [
        QueueSettings(queue="a", lease=hour, max_attempts=3),
        QueueSettings(queue="b", publish_timeout=hour / 2, breaker_cap=hour, backoff_cap=24 * hour),
    ]
    found = longest(settings, queues)
    assert (found.lease, found.publish_timeout, found.max_attempts) == (hour, hour / 2, 12)
    assert (found.breaker_cap, found.backoff_cap) == (hour, 24 * hour)
    assert longest(settings, []) == settings


def test_a_name_that_no_consumer_can_have_is_refused(call: Call, store: str) -> None:
    result = call("inbox", "purge", "x" * 101, "--older-than", "14d", store=store)
    assert (result.code, result.out) == (2, "")
    assert "consumer has 101 bytes" in result.err
    assert call("inbox", "list", "--after", "\ud800", store=store).code == 2


def test_commits_each_step(call: Call, store: str) -> None:
    take_in(store, "billing", 5, days=30)
    with psycopg.connect(store) as connection:
        connection.execute("CREATE TABLE step (transaction xid8)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO step VALUES (pg_current_xact_id()); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER n AFTER DELETE ON outbox_inbox FOR EACH ROW EXECUTE FUNCTION note()")
    result = call("inbox", "purge", "billing", "--older-than", "14d", "--step", "2", store=store)
    assert result.out == "forgot 5 entries of billing\n"
    with psycopg.connect(store) as connection:
        steps = connection.execute("SELECT count(*) FROM step GROUP BY transaction ORDER BY 1").fetchall()
    assert steps == [(1,), (2,), (2,)]


SLOW = (
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$",
    "CREATE TRIGGER slow AFTER DELETE ON outbox_inbox FOR EACH ROW EXECUTE FUNCTION slow()",
)


def test_makes_its_steps_smaller_where_they_take_too_long(call: Call, store: str) -> None:
    take_in(store, "billing", 40, days=30)
    with psycopg.connect(store) as connection:
        for statement in SLOW:
            connection.execute(statement)
        database = connection.execute("SELECT quote_ident(current_database())").fetchone()
        assert database is not None
        connection.execute(f"ALTER DATABASE {database[0]} SET statement_timeout = '300ms'".encode())
    result = call("inbox", "purge", "billing", "--older-than", "14d", "--step", "32", store=store)
    assert (result.code, result.out) == (0, "forgot 40 entries of billing\n")
    assert "going on in steps of 16" in result.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_ended_half_way_it_has_forgotten_whole_steps_and_goes_on_next_time(
    configured: Program, call: Call, store: str, number: signal.Signals, code: int
) -> None:
    take_in(store, "billing", 4_000, days=30)
    with psycopg.connect(store) as connection:
        connection.execute(SLOW[0].replace("0.02", "0.001"))
        connection.execute(SLOW[1])
    process = configured.start("inbox", "purge", "billing", "--older-than", "14d", "--step", "50")
    deadline = time.monotonic() + 30
    while left(store) > 3_900:
        assert time.monotonic() < deadline
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (code, "", "")
    rest = left(store)
    assert 0 < rest < 4_000
    assert rest % 50 == 0
    with psycopg.connect(store) as connection:
        connection.execute("DROP TRIGGER slow ON outbox_inbox")
    result = call("inbox", "purge", "billing", "--older-than", "14d", store=store)
    assert result.out == f"forgot {rest} entries of billing\n"


def test_without_tables_it_says_what_to_do(call: Call, database18: str) -> None:
    for words in (("list",), ("purge", "billing", "--older-than", "14d")):
        result = call("inbox", *words, store=database18)
        assert (result.code, result.out) == (4, "")
        assert "fencepost migrate" in result.err
