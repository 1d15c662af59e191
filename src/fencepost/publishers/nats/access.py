"""How fencepost gets into a NATS server: addresses, login, TLS. Secrets never stand inside a server URL."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.errors import ConfigError
from fencepost.publishers.address import Address
from fencepost.publishers.credentials import LOGIN_OPTIONS, TLS_OPTIONS, Login, Secret, redacted, tls_context

if TYPE_CHECKING:
    from nats.aio.client import Client

ACCESS_OPTIONS = LOGIN_OPTIONS | TLS_OPTIONS | {"token_env", "token_file", "creds", "nkey", "tls"}


class Access:
    """What nats-py's ``connect`` is told.

    Raises:
        ConfigError: two ways to log in at once, a file that cannot be read, or nkeys is not installed.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        given = address.options
        # In a NATS URL, text before the '@' without a colon is a token, unless a password stands elsewhere.
        is_token = address.username is not None and address.password is None and not _any(given, "password_")
        self._token = Secret(address, "token", address.username if is_token else None)
        self._login = Login(replace(address, username=None) if is_token else address)
        self._files = {option: given[option] for option in ("creds", "nkey") if option in given}
        if self._token.is_given + self._login.is_given + len(self._files) > 1:
            raise ConfigError(f"{address.display}: choose one of user and password, token, creds= and nkey=")
        self._check_files(address)
        self._tls_first = _tls(address) == "first"
        self._context = tls_context(address) if _tls(address) != "off" else None
        self._servers = [_server(host, port) for host, port in address.hosts]
        self._timeout = timeout
        self._secrets: tuple[str | None, ...] = ()
        """As they were last read, to keep them out of errors."""

    def connect_options(self) -> dict[str, Any]:
        """Return the arguments of nats-py's ``connect``, secrets as they stand now.

        Raises:
            Retryable: as for `Secret.read`.
        """
        options: dict[str, Any] = {
            "servers": self._servers,
            "name": "fencepost",
            "allow_reconnect": False,
            # 0 would mean "for ever" to nats-py's first connection. With 1 it dials each server twice at most.
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": self._timeout / len(self._servers),
        }
        user, password = self._login.read()
        if user is not None or password is not None:
            options |= {"user": user or "", "password": password or ""}
        token = self._token.read()
        if token is not None:
            options["token"] = token
        self._secrets = (user, password, token)
        if "creds" in self._files:
            options["user_credentials"] = self._files["creds"]
        if "nkey" in self._files:
            options["nkeys_seed"] = self._files["nkey"]
        if self._context is not None:
            options |= {"tls": self._context, "tls_handshake_first": self._tls_first}
        return options

    def new_client(self) -> Client:
        """Return a client that is not connected; one that must have TLS does not log in without it."""
        from nats.aio.client import Client
        from nats.errors import Error

        if self._context is None:
            return Client()

        class TlsClient(Client):
            """nats-py logs in without TLS where the server, or somebody in between, does not ask for it."""

            def _connect_command(self) -> bytes:
                if not self._server_info.get("tls_required"):
                    raise Error("nats: the server offers no TLS, which ?tls= asks for: nothing was sent to it")
                self.tls_checked = True
                return super()._connect_command()

        client = TlsClient()
        client.tls_checked = False
        return client

    def is_as_asked(self, client: Client) -> bool:
        """Tell whether a connected client has TLS, where it must: False if nats-py no longer lets us look."""
        return self._context is None or getattr(client, "tls_checked", False) is True

    def redacted(self, text: str) -> str:
        """Return an error's text without our secrets."""
        return redacted(text, self._secrets)

    def _check_files(self, address: Address) -> None:
        for option, path in self._files.items():
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"{address.display}: {option}={path!r} cannot be read: {error.strerror or error}"
                ) from None
            if importlib.util.find_spec("nkeys") is None:
                raise ConfigError(f"{address.display}: {option}= needs nkeys: pip install nkeys")


def _tls(address: Address) -> str:
    """Return off, on or first; the files of `TLS_OPTIONS` turn it on."""
    chosen = address.options.get("tls", "on" if TLS_OPTIONS & address.options.keys() else "off")
    if chosen not in ("off", "on", "first"):
        raise ConfigError(f"{address.display}: tls must be on, off, or first (the server's handshake_first)")
    if chosen == "off" and TLS_OPTIONS & address.options.keys():
        raise ConfigError(f"{address.display}: tls=off makes no use of ca=, cert= and key=")
    return chosen


def _any(options: Mapping[str, str], start: str) -> bool:
    return any(name.startswith(start) for name in options)


def _server(host: str, port: int | None) -> str:
    return f"nats://{f'[{host}]' if ':' in host else host}:{port or 4222}"
