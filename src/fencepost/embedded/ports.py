"""Finding a port on 127.0.0.1, and whether a server listens on one."""

from __future__ import annotations

import secrets
import socket


def listening(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def taken(port: int) -> bool:
    """Whether a server could not listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def free_port() -> int:
    """A port below the ranges that systems hand out for outgoing connections, so that a restart finds it free."""
    for _ in range(50):
        port = 20_000 + secrets.randbelow(10_000)
        if not taken(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen
