"""The command line, one module a command; ``app`` puts them together."""

from fencepost.cli.app import main

__all__ = ["main"]
