"""Who changes something, as it is kept beside the change."""

from __future__ import annotations

import getpass
import os

import click

actor_option = click.option("--actor", metavar="NAME", help="Who; kept with the change (default: your user name).")


def os_user() -> str:
    """Return the name of the user who runs the program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
