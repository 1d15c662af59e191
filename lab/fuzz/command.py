"""Runs the shipped command line in this process, with what it prints and its exit code in hand."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost.cli import exits
from fencepost.cli.app import run
from lab.fuzz.target import ACCEPTED, Result, failed, refused

SECRET = "s3cretPAZZw0rd"  # noqa: S105 - planted, to be looked for in whatever is shown


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and all that it printed."""

    code: int
    out: str
    err: str


def ran(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Said:
    """Run a command line in a folder, in this environment and without anything to read."""
    out, err = _stream(), _stream()
    before = dict(os.environ), Path.cwd(), sys.stdin
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.stdin = io.StringIO("")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _code(arguments)
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        os.chdir(before[1])
        sys.stdin = before[2]
    return Said(code, *(_text(stream) for stream in (out, err)))


def ran_apart(arguments: Sequence[str], folder: Path, environ: Mapping[str, str], seconds: float) -> Said:
    """Run a command line in a process of its own: one that serves ends its process, whoever else is in it."""
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", *arguments],
        cwd=folder,
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    return Said(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def _code(arguments: Sequence[str]) -> int:
    try:
        return run(arguments)
    except SystemExit as wanted:
        return wanted.code if isinstance(wanted.code, int) else exits.FAILED


def _stream() -> io.TextIOWrapper:
    # As `main` sets up the real ones.
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)  # noqa: S101 - for mypy: `_stream` made it
    return raw.getvalue().decode("utf-8")


def judged(said: Said, *, told: bool = True) -> Result:
    """Judge what holds for every command; ``told``: it could know which of its input is secret."""
    if said.code not in exits.MEANINGS:
        return failed("an exit code that is not documented", said.code)
    everything = said.out + said.err
    for trouble in ("Traceback (most recent", "unexpected: "):
        if trouble in everything:
            at = everything.index(trouble)
            return failed(_kind(everything[at : at + 300], trouble), everything[at : at + 600])
    if told and SECRET in everything:
        at = everything.index(SECRET)
        return failed("a secret is shown", everything[max(0, at - 200) : at + 100])
    if said.code in (exits.OK, exits.NEGATIVE):
        return ACCEPTED
    if not said.err.strip():
        return failed("refused without a word", said.code)
    return refused(f"exit code {said.code}")


def _kind(text: str, trouble: str) -> str:
    """Tell one kind of trouble from another by the name of its error."""
    return f"{trouble.strip(': ')} {text.removeprefix(trouble).partition(':')[0][:60]}"


@contextlib.contextmanager
def clean_environment() -> Iterator[dict[str, str]]:
    """Yield this process's environment without what would configure fencepost or libpq."""
    yield {name: value for name, value in os.environ.items() if not name.startswith(("FENCEPOST_", "PG"))}
