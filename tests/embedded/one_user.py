"""A process that uses an embedded server until its standard input says so; run by the tests as a program.

Usage: python -m tests.embedded.one_user ADDRESS [UID]. It prints the URL, waits for a line, leaves, and
prints ``left``. With a UID it gives up root first. A line ``fork`` makes it fork a child that leaves at once,
a line ``outlive`` one that is still inside when the process itself has left.
"""

from __future__ import annotations

import os
import sys

import fencepost.embedded.locks  # noqa: F401  # loaded late otherwise, when an ordinary user perhaps cannot
from fencepost.embedded import binaries, open_store
from fencepost.embedded.account import Account


def become(uid: int) -> None:
    """Turn into an ordinary user. What that user cannot reach (our Python, perhaps) is loaded already."""
    programs = binaries.runnable(binaries.wheel_bin_dir(), Account(uid, uid))
    setattr(binaries, "wheel_bin_dir", lambda: programs)  # noqa: B010  # mypy knows it as a function
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def leave_in_a_forked_child() -> None:
    """Fork in the middle of the block, and let the child run to the end of it."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        say(f"child ended {status}")
        sys.stdin.readline()


def fork_a_child_that_stays() -> int:
    """Fork a child that ends when the returned descriptor is closed, without leaving the block."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    return write_end


def main() -> None:
    address = sys.argv[1]
    if len(sys.argv) > 2:
        become(int(sys.argv[2]))
    with open_store(address) as url:
        say(url)
        command = sys.stdin.readline()
        if command == "fork\n":
            leave_in_a_forked_child()
        elif command == "outlive\n":
            child = fork_a_child_that_stays()
    say("left")
    if command == "outlive\n":
        sys.stdin.readline()
        os.close(child)
        os.wait()


if __name__ == "__main__":
    main()
