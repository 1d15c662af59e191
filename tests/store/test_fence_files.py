"""One fence: every statement with which a holder changes its row has the condition from the shared fragment.

Rows change in three ways. A holder writes behind the fence. Whoever takes a row from its holder (claim, reap,
operator) raises the token. And a few statements change rows that nobody holds; each of them is named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from fencepost.store.catalog import _folder
from tests.store.test_catalog import FILES

FOLDER = _folder("postgresql")
FRAGMENTS = sorted(
    file.name.removesuffix(".sql") for file in (FOLDER / "fragments").iterdir() if file.name.endswith(".sql")
)

TOKENS = {"outbox": "lease_version", "job": "attempt_token"}
"""Tables whose rows are held under a lease, and the column that has the token."""

NOT_HELD: Mapping[tuple[str, str], str] = {
    ("claim", "SET status = 'blocked'"): "parks pending messages",
    ("promote", "SET status = 'pending'"): "lets parked messages go on",
    ("purge", "DELETE FROM {outbox}"): "deletes what is done",
    ("job_purge", "status = 'done'"): "deletes what is done",
}
"""Changes of rows that nobody holds: by file, and a text that stands in the change."""


@dataclass(frozen=True)
class Change:
    """One UPDATE or DELETE of a leased table, up to what it returns."""

    file: str
    table: str
    text: str


def read(name: str) -> str:
    text = FOLDER.joinpath(*f"{name}.sql".split("/")).read_text(encoding="utf-8")
    return re.sub(r"--.*", "", text)


def changes_in(file: str, text: str) -> list[Change]:
    tables = "|".join(TOKENS)
    found = re.finditer(rf"(?:UPDATE|DELETE\s+FROM)\s+\{{({tables})\}}.*?(?=\bRETURNING\b|\Z)", text, re.DOTALL)
    return [Change(file, match[1], match[0]) for match in found]


def fences_of(table: str) -> list[str]:
    """The fragments that are the fence of a table: ``message_fence…``, ``job_fence…``."""
    prefix = "message_fence" if table == "outbox" else f"{table}_fence"
    return [name for name in FRAGMENTS if re.fullmatch(rf"{prefix}(_.+)?", name)]


def has_fence(change: Change) -> bool:
    return any(f"{{{name}}}" in change.text for name in fences_of(change.table))


def raises_token(change: Change) -> bool:
    """It, or a fragment in it, gives the row another token."""
    used = [read(f"fragments/{name}") for name in re.findall(r"\{(\w+)\}", change.text) if name in FRAGMENTS]
    sets = [text.partition("WHERE")[0] for text in (change.text, *used)]
    return any(re.search(rf"\b{TOKENS[change.table]}\s*=(?!=)", text) and "SET" in text for text in sets)


def is_of_nobody(change: Change) -> bool:
    return any(file == change.file and mark in change.text for file, mark in NOT_HELD)


def problem_of(change: Change) -> str | None:
    """Return what is wrong with a change, for people; None where it is one of the three kinds."""
    if has_fence(change) or is_of_nobody(change):
        return None
    if "%(token" in change.text:
        return f"{change.file} changes {change.table} under a token without {fences_of(change.table)}"
    if raises_token(change):
        return None
    return f"{change.file} changes {change.table} unfenced and without another token; see NOT_HELD"


CHANGES = [change for name in FILES for change in changes_in(name, read(name))]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.file)
def test_a_change_is_fenced_or_takes_the_row_or_is_of_a_row_that_nobody_holds(change: Change) -> None:
    assert problem_of(change) is None


@pytest.mark.parametrize("name", FILES)
def test_no_file_compares_a_token_in_words_of_its_own(name: str) -> None:
    text = read(name)
    if name in ("finalized", "job_finalized"):
        return  # it looks for the target state, in which a row is no longer held
    for column in TOKENS.values():
        assert not re.search(rf"\b{column}\s*(=|<>|IN|IS)\s*[^;]*?%\(token", text), name


def test_the_fence_is_state_and_token_both() -> None:
    for table, column in TOKENS.items():
        for name in fences_of(table):
            text = read(f"fragments/{name}")
            assert re.search(rf"\b{column} = ", text), name
            assert "status = 'processing'" in text, name


def test_there_is_something_to_look_at() -> None:
    fenced = {change.file for change in CHANGES if change.table == "outbox" and has_fence(change)}
    assert fenced == {"heartbeat", "mark_dead", "mark_done", "mark_done_ordered", "release", "reschedule"}
    taking = {change.file for change in CHANGES if change.table == "outbox" and raises_token(change)}
    assert taking == {"claim", "claim_suspects", "dead_retry", "dead_skip", "reap"}
    assert {(change.file) for change in CHANGES if is_of_nobody(change)} == {file for file, _ in NOT_HELD}


PLANTED: dict[str, Callable[[str], str]] = {
    "the token alone": lambda text: text.replace("{message_fence}", "lease_version = %(token)s::bigint"),
    "the status alone": lambda text: text.replace(
        "{message_fence}", "status = 'processing' AND %(token)s::bigint > 0"
    ),
    "nothing": lambda text: text.replace("AND {message_fence}", ""),
}


@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize("name", ["mark_done", "mark_dead", "reschedule", "release", "heartbeat"])
def test_it_sees_a_fence_in_other_words(name: str, fault: str) -> None:
    changed = PLANTED[fault](read(name))
    assert changed != read(name)
    assert any(problem_of(change) for change in changes_in(name, changed))
