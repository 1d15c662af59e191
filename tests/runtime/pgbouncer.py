"""A real PgBouncer in transaction mode, in front of one of the tests' servers."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from fencepost.embedded.ports import free_port
from tests.servers import ServerProcess, found

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
pidfile = {folder}/pid
unix_socket_dir =
{extra}
"""


@contextlib.contextmanager
def pgbouncer(url: str, extra: str = "") -> Iterator[str]:
    """Run a pooler with two server connections; yield the database's URL through it."""
    program, port = found("pgbouncer", "run `make servers` as root"), free_port()
    parts = urlsplit(url)
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
    command = [program, *(["-u", "nobody"] if as_root else []), str(config)]
    through = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    try:
        with ServerProcess(folder, port, command) as server:
            connect = functools.partial(psycopg.connect, through, connect_timeout=5)
            server.first_answer(connect, psycopg.OperationalError).close()
            yield through
    finally:
        shutil.rmtree(folder)
