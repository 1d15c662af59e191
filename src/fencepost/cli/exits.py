"""What the exit codes mean; scripts rely on them."""

from __future__ import annotations

OK = 0
NEGATIVE = 1
USAGE = 2
DATABASE = 3
SCHEMA = 4
FAILED = 5
INTERRUPTED = 130
READER_GONE = 141

MEANINGS: dict[int, str] = {
    OK: "done; for dispatch and work: stopped, with everything in flight finished",
    NEGATIVE: "a negative answer: problems found, nothing there, a target missed, or the grace time ended first",
    USAGE: "wrong usage or a setting that cannot work",
    DATABASE: "the database cannot be reached, refused us, or failed",
    SCHEMA: "the tables are missing or not what this version needs",
    FAILED: "a publisher or a handler failed and on_unexpected is stop, or fencepost itself failed",
    INTERRUPTED: "interrupted with Ctrl-C",
    READER_GONE: "whoever read the output went away",
}


def epilog() -> str:
    """Return the table of exit codes for ``fencepost --help``."""
    # \b keeps click from refilling the lines.
    return "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {text}" for code, text in MEANINGS.items())
