"""A real PgBouncer in transaction mode, in front of one of the tests' servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.runtime.box import wait_until

CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
server_reset_query =
logfile = {folder}/log
pidfile = {folder}/pid
unix_socket_dir =
{extra}
"""


def binary() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is not None:
        return found
    if os.environ.get("CI") or os.environ.get("FENCEPOST_REQUIRE_SERVERS") == "1":
        pytest.fail("pgbouncer is required and missing: run `make servers`")
    pytest.skip("pgbouncer is not installed: run `make servers` as root")


@contextlib.contextmanager
def pgbouncer(url: str, extra: str = "") -> Iterator[str]:
    """Run a pooler with two server connections; yield the database's URL through it."""
    program = binary()
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="fencepost-pgbouncer-"))
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            server_port=parts.port,
            user=parts.username,
            password=parts.password,
            port=port,
            folder=folder,
            extra=extra,
        )
    )
    as_root = os.geteuid() == 0
    if as_root:  # it refuses to run as root
        shutil.chown(folder, "nobody")
        shutil.chown(config, "nobody")
    process = subprocess.Popen(
        [program, "-q", *(["-u", "nobody"] if as_root else []), str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    through = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    try:
        wait_until(lambda: _answers(through), "PgBouncer")
        yield through
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
